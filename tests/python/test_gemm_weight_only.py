"""Products with FP8 weights alone, and their gradients, of NumPy's arrays, against FP64."""

import numpy as np
import octofold
import pytest
import reference
from octofold._core.library import library
from octofold._ops.gemm_weight_only import _workspace_size

HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SHAPES = ((1, 300, 257), (17, 5, 1), (130, 129, 128), (64, 1, 700))


def weight(rng, n, k, dtype, granularity):
    codes = rng.normal(size=(n, k)).astype(np.float32).astype(reference.DTYPES[dtype])
    scale = np.exp2(rng.uniform(-3, 3, octofold.ops.scale_shape(granularity, n, k)))
    return octofold.ScaledTensor(codes, scale.astype(np.float32), granularity)


def random(rng, *shape, dtype="float16"):
    return rng.normal(size=shape).astype(np.float32).astype(reference.DTYPES[dtype])


def values_of(w):
    return w.dequantize("float32").astype(np.float64)


def assert_close(actual, expected, terms, share=1e-6):
    limit = HALF_ULP[np.dtype(actual.dtype).name] * np.abs(expected) + share * terms + 1e-7
    assert actual.shape == expected.shape
    assert np.all(np.abs(actual.astype(np.float64) - expected) <= limit)


@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products(dtype, granularity, w_dtype, rng):
    for m, n, k in SHAPES:
        w, x = weight(rng, n, k, w_dtype, granularity), random(rng, m, k, dtype=dtype)
        wide, right = x.astype(np.float64), values_of(w)
        terms = np.abs(wide) @ np.abs(right).T
        y = octofold.gemm_weight_only(x, w)
        assert y.dtype == x.dtype
        assert_close(y, wide @ right.T, terms)
        for bias_dtype in (dtype, "float32"):
            bias = random(rng, n, dtype=bias_dtype)
            expected = wide @ right.T + bias.astype(np.float64)
            assert_close(octofold.gemm_weight_only(x, w, bias=bias), expected, terms)
        assert_close(
            octofold.gemm_weight_only(x, w, bias=bias, out_dtype="float32"), expected, terms
        )


@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients(dtype, granularity, w_dtype, rng):
    for m, n, k in SHAPES:
        w, dy = weight(rng, n, k, w_dtype, granularity), random(rng, m, n, dtype=dtype)
        wide, right = dy.astype(np.float64), values_of(w)
        # Scales that differ along N may be rounded into one of the factors.
        share = 1e-6 if granularity in ("tensor", "128x128") else HALF_ULP[dtype]
        dx = octofold.ops.gemm_weight_only_gradient(dy, w)
        assert dx.dtype == dy.dtype
        assert_close(dx, wide @ right, np.abs(wide) @ np.abs(right), share)
        exact = octofold.ops.gemm_weight_only_gradient(dy, w, out_dtype="float32")
        assert_close(exact, wide @ right, np.abs(wide) @ np.abs(right), share)


def test_shapes_and_strides(rng):
    w = weight(rng, 20, 40, "e4m3", "128x128")
    x = random(rng, 2, 3, 80)[..., ::1][..., :40]
    y = octofold.gemm_weight_only(np.ascontiguousarray(x), w)
    assert y.shape == (2, 3, 20)
    np.testing.assert_allclose(octofold.gemm_weight_only(x[0], w), y[0], rtol=2e-3, atol=2e-3)
    wide = np.zeros((20, 64), reference.DTYPES["e4m3"])
    wide[:, :40] = w.data
    strided = octofold.ScaledTensor(wide[:, :40], w.scale, "128x128")
    again = octofold.gemm_weight_only(x[0], strided)
    np.testing.assert_array_equal(again, octofold.gemm_weight_only(x[0], w))
    assert octofold.gemm_weight_only(x[0, :0], w).shape == (0, 20)
    none = octofold.ScaledTensor(w.data[:, :0], w.scale[:, :0], "128x128")
    bias = random(rng, 20)
    empty = octofold.gemm_weight_only(random(rng, 3, 0), none, bias=bias)
    np.testing.assert_array_equal(empty, np.broadcast_to(bias, (3, 20)))


def test_a_vector_is_one_row(rng):
    w, x = weight(rng, 20, 300, "e4m3", "128x128"), random(rng, 300)
    bias = random(rng, 20, dtype="float32")
    row = octofold.gemm_weight_only(x[None], w, bias=bias)
    y = octofold.gemm_weight_only(x, w, bias=bias)
    assert y.shape == (20,)
    np.testing.assert_array_equal(y, row[0])
    out = np.empty(20, np.float32)
    assert octofold.gemm_weight_only(x, w, bias=bias, out=out) is out
    exact = octofold.gemm_weight_only(x[None], w, bias=bias, out_dtype="float32")
    np.testing.assert_array_equal(out, exact[0])


def test_writes_into_out(rng):
    w, x = weight(rng, 20, 30, "e5m2", "channel"), random(rng, 2, 30)
    memory = np.full((2, 25), np.nan, np.float16)
    out = memory[:, :20]
    assert octofold.gemm_weight_only(x, w, out=out) is out
    np.testing.assert_array_equal(out, octofold.gemm_weight_only(x, w))
    assert np.isnan(memory[:, 20:]).all()


def test_says_what_is_wrong(rng):
    w, x = weight(rng, 20, 30, "e4m3", "tensor"), random(rng, 2, 30)
    two_level = octofold.ScaledTensor(
        w.data, np.ones((1, 1), np.float32), "128x128", np.ones(20, np.float32)
    )
    bias = np.zeros(20, np.float32)
    product, gradient = octofold.gemm_weight_only, octofold.ops.gemm_weight_only_gradient
    for call, message in (
        (lambda: product(x, x), "argument 'w': expected a ScaledTensor"),
        (lambda: product(x, two_level), "argument 'w.channel_scale'"),
        (lambda: product(x[:, :7], w), "argument 'x': expected"),
        (lambda: product(np.zeros((17, 30), np.float32), w), "argument 'x': expected"),
        (lambda: product(x.astype(np.float32), w, bias=bias), "argument 'bias': expected none"),
        (lambda: product(x, w, out_dtype="bfloat16"), "argument 'out': expected"),
        (lambda: product(x[0], w, out_dtype="bfloat16"), "argument 'out': expected"),
        (lambda: product(x, w, bias=x[0, :7]), "argument 'bias': expected"),
        (lambda: product(x, w, bias=np.zeros(20)), "argument 'bias': expected"),
        (lambda: product(x, w, out=np.empty((3, 20), np.float16)), "argument 'out': expected"),
        (lambda: product(x, w, out=x[:, :20]), "argument 'out': expected memory of its own"),
        (lambda: gradient(x, w), "argument 'gradient': expected"),
        (lambda: gradient(x[:, :20].astype(np.float32), w), "argument 'gradient': expected"),
        (lambda: gradient(x[:, :20], 3), "argument 'w': expected a ScaledTensor"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            call()


def test_workspace_is_that_of_the_library(rng):
    for rows in (0, 1, 16, 17, 64, 255, 256, 1024, 5000):
        for columns, depth in ((0, 512), (8192, 512), (4096, 7168), (24576, 1536), (300, 1 << 40)):
            size = _workspace_size((rows, columns), depth)
            assert size == library.weight_only_workspace_size(rows, columns, depth)
            assert _workspace_size((2, rows, columns), depth) == _workspace_size(
                (2 * rows, columns), depth
            )
    x, w = random(rng, 20, 1040), weight(rng, 70, 1040, "e4m3", "channel")
    out = np.full((20, 70), np.nan, np.float32)
    assert _workspace_size(out.shape, 1040) > 0
    octofold.gemm_weight_only(x, w, out=out)
    assert np.array_equal(out, octofold.gemm_weight_only(x, w, out_dtype="float32"))
    with pytest.raises(octofold.InvalidArgumentError, match="argument 'out'"):
        octofold.gemm_weight_only(x, w, out=np.empty((20, 60), np.float32))
