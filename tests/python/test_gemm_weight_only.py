"""Products with FP8 weights alone, of few rows of any type and of many in 16 bits, and their
gradients, of NumPy's arrays, against FP64."""

import itertools

import numpy as np
import octofold
import pytest
from octofold import ScaledTensor
from octofold._core.library import library
from octofold._ops.gemm_weight_only import _workspace_size
from octofold.ops import scale_shape

from tests.cases import shapes
from tests.python import reference
from tests.python.devices import cpu_only, gemm_weight_only, gemm_weight_only_gradient, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")

HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
HALVES = ("float16", "bfloat16")

every_weight_dtype = pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
every_granularity = pytest.mark.parametrize("granularity", reference.GRANULARITIES)


def few_rows():
    return shapes.WEIGHT_ONLY_FEW + (shapes.WEIGHT_ONLY_FEW_ON_GPU if on_gpu() else ())


def many_rows():
    return shapes.WEIGHT_ONLY_MANY + (shapes.WEIGHT_ONLY_MANY_ON_GPU if on_gpu() else ())


def random(rng, *shape, dtype="float16"):
    return rng.normal(size=shape).astype(np.float32).astype(reference.DTYPES[dtype])


def scaled(rng, rows, cols, dtype="e4m3", granularity="128x128"):
    scale = np.exp2(rng.uniform(-4, 4, scale_shape(granularity, rows, cols))).astype(np.float32)
    return ScaledTensor(random(rng, rows, cols, dtype=dtype), scale, granularity)


def values_of(x):
    x = x.dequantize("float32") if isinstance(x, ScaledTensor) else x
    return x.astype(np.float64)


def assert_product(actual, left, right, bias=0.0, share=1e-6):
    """actual = left · right + bias, up to half an ulp and this share of the sum of magnitudes."""
    expected, terms = left @ right + np.asarray(bias, np.float64), np.abs(left) @ np.abs(right)
    share += 5e-6 * on_gpu()
    half_ulp = HALF_ULP[np.dtype(actual.dtype).name] * (1 + 0.01 * on_gpu())
    limit = half_ulp * np.abs(expected) + share * terms + 1e-7
    assert actual.shape == expected.shape
    assert np.all(np.abs(actual.astype(np.float64) - expected) <= limit)


@every_weight_dtype
@every_granularity
@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_of_every_type_and_granularity(dtype, granularity, w_dtype, rng):
    for m, n, k in few_rows() + (many_rows() if dtype in HALVES else ()):
        w, x = scaled(rng, n, k, w_dtype, granularity), random(rng, m, k, dtype=dtype)
        y, right = gemm_weight_only(x, w), values_of(w).T
        assert y.dtype == reference.DTYPES["float32" if dtype.startswith("e") else dtype]
        assert_product(y, values_of(x), right)
        for bias_dtype in (dtype, "float32") if dtype in HALVES else ():
            bias = random(rng, n, dtype=bias_dtype)
            assert_product(gemm_weight_only(x, w, bias=bias), values_of(x), right, bias)
        if dtype in HALVES:  # whose bias is the last of these
            y = gemm_weight_only(x, w, bias=bias, out_dtype="float32")
            assert_product(y, values_of(x), right, bias)


@pytest.mark.parametrize("dtype", ["float16", "float32", "e5m2"])
def test_of_memory_anywhere(dtype, rng):
    """Rows of more numbers, that begin anywhere; what lies beside stays as it was."""

    def placed(x, padding, offset):
        memory = np.full(x.shape[0] * (x.shape[1] + padding) + offset, np.nan, np.float32)
        memory = memory.astype(x.dtype)[offset:].reshape(x.shape[0], -1)[:, : x.shape[1]]
        memory[...] = x
        return memory

    for rows, (offset, padding) in itertools.product(
        (3, 70) if dtype in HALVES else (3,), ((1, 0), (3, 5), (16, 16), (4, 12), (8, 0))
    ):
        plain = scaled(rng, 130, 300, "e4m3", "1x128")
        w = ScaledTensor(placed(plain.data, padding, offset), plain.scale, "1x128")
        x = placed(random(rng, rows, 300, dtype=dtype), padding, offset)
        out = placed(np.full((rows, 130), np.nan, np.float32), padding, offset)
        assert gemm_weight_only(x, w, out=out) is out
        assert_product(out, values_of(x), values_of(plain).T)
        assert np.count_nonzero(~np.isnan(out.base)) == out.size
        if dtype in HALVES:
            dy = placed(random(rng, rows, 130, dtype=dtype), padding, offset)
            dx = placed(np.full((rows, 300), np.nan, np.float32), padding, offset)
            assert gemm_weight_only_gradient(dy, w, out=dx) is dx
            assert_product(dx, values_of(dy), values_of(plain), share=HALF_ULP[dtype])
            assert np.count_nonzero(~np.isnan(dx.base)) == dx.size


@every_weight_dtype
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "e4m3"])
def test_decodes_every_code(dtype, w_dtype):
    codes = np.arange(256, dtype=np.uint8)
    for place in (0, 1, 2, 3, 77, 127):
        data, x = np.zeros((256, 128), np.uint8), np.zeros((1, 128), np.float32)
        data[:, place], x[0, place] = codes, 1
        w = ScaledTensor(data.view(reference.DTYPES[w_dtype]), np.ones(1, np.float32), "tensor")
        y = gemm_weight_only(x.astype(reference.DTYPES[dtype]), w, out_dtype="float32")
        np.testing.assert_array_equal(y[0], reference.decode(codes, w_dtype))


@every_granularity
@pytest.mark.parametrize("x_granularity", reference.GRANULARITIES)
def test_of_every_pair_of_granularities(granularity, x_granularity, rng):
    for m, n, k in (*few_rows(), (5, 200, 300)):
        w, x = scaled(rng, n, k, "e4m3", granularity), scaled(rng, m, k, "e5m2", x_granularity)
        assert_product(gemm_weight_only(x, w), values_of(x), values_of(w).T)
    y = gemm_weight_only(x, w, out_dtype="bfloat16")
    assert y.dtype == reference.DTYPES["bfloat16"]


@every_weight_dtype
@every_granularity
@pytest.mark.parametrize("dtype", HALVES)
def test_gradients(dtype, granularity, w_dtype, rng):
    for m, n, k in few_rows() + many_rows():
        w, dy = scaled(rng, n, k, w_dtype, granularity), random(rng, m, n, dtype=dtype)
        # Scales that differ along N may be rounded into one of the factors.
        share = 1e-6 if granularity in ("tensor", "128x128") else HALF_ULP[dtype]
        dx = gemm_weight_only_gradient(dy, w)
        assert dx.dtype == dy.dtype
        assert_product(dx, values_of(dy), values_of(w), share=share)
        exact = gemm_weight_only_gradient(dy, w, out_dtype="float32")
        assert_product(exact, values_of(dy), values_of(w), share=share)


@cpu_only
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shapes_and_strides(dtype, rng):
    w = scaled(rng, 20, 40)
    x = random(rng, 2, 3, 80, dtype=dtype)[..., ::1][..., :40]
    y = gemm_weight_only(np.ascontiguousarray(x), w)
    assert y.shape == (2, 3, 20)
    np.testing.assert_allclose(gemm_weight_only(x[0], w), y[0], rtol=2e-3, atol=2e-3)
    repeated = np.broadcast_to(x[0, :1], (5, 40))
    np.testing.assert_array_equal(
        gemm_weight_only(repeated, w), gemm_weight_only(repeated.copy(), w)
    )
    assert gemm_weight_only(x[:0], w).shape == (0, 3, 20)
    no_rows = ScaledTensor(w.data[:0], w.scale[:0], "128x128")
    assert gemm_weight_only(x[0], no_rows).shape == (3, 0)
    # A scale of what is not there is not looked at.
    none = ScaledTensor(w.data[:, :0], np.full(1, np.nan, np.float32), "tensor")
    np.testing.assert_array_equal(gemm_weight_only(x[0, :, :0], none), np.zeros((3, 20)))
    if dtype == "float16":
        bias = random(rng, 20)
        empty = gemm_weight_only(x[0, :, :0], none, bias=bias)
        np.testing.assert_array_equal(empty, np.broadcast_to(bias, (3, 20)))
        dx, columns = (
            gemm_weight_only_gradient(y, w),
            ScaledTensor(none.data.T, none.scale, "tensor"),
        )
        assert dx.shape == (2, 3, 40)
        np.testing.assert_array_equal(dx[1], gemm_weight_only_gradient(y[1], w))
        assert gemm_weight_only_gradient(y[:0], w).shape == (0, 3, 40)
        nothing = gemm_weight_only_gradient(y[0, :, :0], columns)
        np.testing.assert_array_equal(nothing, np.zeros((3, 20)))
    cast = octofold.quantize(x.astype(np.float32))
    flat = ScaledTensor(cast.data.reshape(6, 40), cast.scale.reshape(6, 1), "1x128")
    np.testing.assert_array_equal(
        gemm_weight_only(cast, w).reshape(6, 20), gemm_weight_only(flat, w)
    )


@cpu_only
def test_blocks_are_added_in_fp64_but_those_of_16_bits_in_fp32():
    """An FP32 sum of all of these stays at the first."""
    x = np.zeros((1, 33 * 128), np.float32)
    x[:, ::128] = 1
    w = ScaledTensor(x.astype(reference.DTYPES["e4m3"]), np.ones((1, 33), np.float32), "1x128")
    w.scale[0, 0] = 2**25
    assert gemm_weight_only(x, w).item() == 2**25 + 32
    assert gemm_weight_only(x.astype(np.float16), w, out_dtype="float32").item() == 2**25


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_stays_in_its_row(dtype, rng):
    w, x = scaled(rng, 50, 300, "e5m2"), random(rng, 2, 300, dtype=dtype)
    w.data.view(np.uint8)[31, 222] = 0x7F
    y = gemm_weight_only(x, w).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.broadcast_to(np.arange(50) == 31, (2, 50)))


@cpu_only
@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_a_vector_is_one_row(dtype, rng):
    w, x = scaled(rng, 20, 300), random(rng, 300, dtype=dtype)
    options = {"bias": random(rng, 20, dtype="float32")} if dtype in HALVES else {}
    y = gemm_weight_only(x, w, **options)
    np.testing.assert_array_equal(y, gemm_weight_only(x[None], w, **options)[0])
    out = np.empty(20, np.float32)
    assert gemm_weight_only(x, w, **options, out=out) is out
    exact = gemm_weight_only(x[None], w, **options, out_dtype="float32")
    np.testing.assert_array_equal(out, exact[0])


@cpu_only
@every_granularity
def test_a_scaled_vector_is_one_row(granularity, rng):
    w, rows = scaled(rng, 20, 300), scaled(rng, 1, 300, "e5m2", granularity)
    scale = rows.scale[0] if granularity == "1x128" else rows.scale
    y = gemm_weight_only(ScaledTensor(rows.data[0], scale, granularity), w)
    np.testing.assert_array_equal(y, gemm_weight_only(rows, w)[0])


@cpu_only
def test_workspace_is_that_of_the_library(rng):
    for rows in (0, 1, 16, 17, 64, 255, 256, 1024, 5000):
        for columns, depth in ((0, 512), (8192, 512), (4096, 7168), (24576, 1536), (300, 1 << 40)):
            size = _workspace_size((rows, columns), depth)
            assert size == library.weight_only_workspace_size(rows, columns, depth)
            of_stack = _workspace_size((2, rows, columns), depth)
            assert of_stack == _workspace_size((2 * rows, columns), depth)
    x, w = random(rng, 20, 1040), scaled(rng, 70, 1040, "e4m3", "channel")
    out = np.full((20, 70), np.nan, np.float32)
    assert _workspace_size(out.shape, 1040) > 0
    gemm_weight_only(x, w, out=out)
    assert np.array_equal(out, gemm_weight_only(x, w, out_dtype="float32"))
