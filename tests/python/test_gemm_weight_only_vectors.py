"""Products of FP8 weights and a few rows of every type, of NumPy's arrays, against FP64."""

import numpy as np
import octofold
import pytest
import reference

TYPES = ("float32", "float16", "bfloat16", "e4m3", "e5m2")
HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def scaled(rng, shape, dtype, granularity):
    codes = rng.normal(size=shape).astype(np.float32).astype(reference.DTYPES[dtype])
    scale = np.exp2(rng.uniform(-4, 4, octofold.ops.scale_shape(granularity, *shape)))
    return octofold.ScaledTensor(codes, scale.astype(np.float32), granularity)


def values_of(x):
    if isinstance(x, octofold.ScaledTensor):
        return x.dequantize("float32").astype(np.float64)
    return x.astype(np.float64)


def assert_product(actual, x, w):
    expected = values_of(x) @ values_of(w).T
    terms = np.abs(values_of(x)) @ np.abs(values_of(w)).T
    own = np.dtype(actual.dtype).name
    error = np.abs(actual.astype(np.float64) - expected)
    assert actual.shape == expected.shape
    assert np.all(error <= HALF_ULP[own] * np.abs(expected) + 1e-6 * terms + 1e-7)


@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("dtype", TYPES)
def test_of_every_type_and_granularity(dtype, granularity, w_dtype, rng):
    for rows, n, k in ((1, 300, 257), (3, 5, 1), (16, 130, 128), (2, 1, 1000)):
        w = scaled(rng, (n, k), w_dtype, granularity)
        x = rng.normal(size=(rows, k)).astype(np.float32).astype(reference.DTYPES[dtype])
        y = octofold.gemm_weight_only(x, w)
        assert y.dtype == reference.DTYPES["float32" if dtype.startswith("e") else dtype]
        assert_product(y, x, w)


@pytest.mark.parametrize("x_granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
def test_of_every_pair_of_granularities(granularity, x_granularity, rng):
    w = scaled(rng, (200, 300), "e4m3", granularity)
    x = scaled(rng, (5, 300), "e5m2", x_granularity)
    assert_product(octofold.gemm_weight_only(x, w), x, w)
    assert (
        octofold.gemm_weight_only(x, w, out_dtype="bfloat16").dtype == reference.DTYPES["bfloat16"]
    )


def test_shapes(rng):
    w = scaled(rng, (20, 30), "e4m3", "128x128")
    x = rng.normal(size=(2, 3, 30)).astype(np.float32)
    y = octofold.gemm_weight_only(x, w)
    assert y.shape == (2, 3, 20)
    np.testing.assert_allclose(octofold.gemm_weight_only(x[1, 2], w), y[1, 2], rtol=1e-4, atol=1e-4)
    assert octofold.gemm_weight_only(x[:0], w).shape == (0, 3, 20)
    none = octofold.ScaledTensor(w.data[:, :0], w.scale[:, :0], "128x128")
    np.testing.assert_array_equal(octofold.gemm_weight_only(x[0, :, :0], none), np.zeros((3, 20)))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_vector_is_one_row(dtype, rng):
    w = scaled(rng, (20, 300), "e4m3", "128x128")
    x = rng.normal(size=(1, 300)).astype(np.float32).astype(reference.DTYPES[dtype])
    y = octofold.gemm_weight_only(x[0], w)
    np.testing.assert_array_equal(y, octofold.gemm_weight_only(x, w)[0])
    for granularity in reference.GRANULARITIES if dtype in ("e4m3", "e5m2") else ():
        rows = scaled(rng, (1, 300), dtype, granularity)
        scale = rows.scale[0] if granularity == "1x128" else rows.scale
        vector = octofold.ScaledTensor(rows.data[0], scale, granularity)
        np.testing.assert_array_equal(
            octofold.gemm_weight_only(vector, w), octofold.gemm_weight_only(rows, w)[0]
        )


def test_writes_into_out(rng):
    w = scaled(rng, (20, 30), "e4m3", "tensor")
    x = rng.normal(size=(2, 30)).astype(np.float32)
    memory = np.full((2, 25), np.nan, np.float32)
    out = memory[:, :20]
    assert octofold.gemm_weight_only(x, w, out=out) is out
    np.testing.assert_array_equal(out, octofold.gemm_weight_only(x, w))
    assert np.isnan(memory[:, 20:]).all()


def test_says_what_is_wrong(rng):
    w = scaled(rng, (20, 30), "e4m3", "tensor")
    x = rng.normal(size=(2, 30)).astype(np.float32)
    for call, message in (
        (lambda: octofold.gemm_weight_only(x, x), "argument 'w': expected a ScaledTensor"),
        (lambda: octofold.gemm_weight_only(x[:, :7], w), "argument 'x': expected"),
        (
            lambda: octofold.gemm_weight_only(np.zeros((17, 30), np.float32), w),
            "argument 'x': expected",
        ),
        (lambda: octofold.gemm_weight_only(x.astype(np.int32), w), "argument 'x': expected"),
        (lambda: octofold.gemm_weight_only(1.5, w), "argument 'x'"),
        (
            lambda: octofold.gemm_weight_only(x, w, out_dtype="e4m3"),
            "argument 'out_dtype': expected one of",
        ),
        (
            lambda: octofold.gemm_weight_only(x, w, out=np.empty((2, 19), np.float32)),
            "argument 'out'",
        ),
        (lambda: octofold.gemm_weight_only(x, w, out=x[:, :20]), "argument 'out': expected memory"),
        (
            lambda: octofold.gemm_weight_only(
                x, w, out=np.empty((2, 20), np.float32), out_dtype="float16"
            ),
            "argument 'out_dtype': expected float32, as is 'out'",
        ),
        (
            lambda: octofold.gemm_weight_only(
                x, octofold.ScaledTensor(w.data, w.scale[:0], "tensor")
            ),
            "argument 'w.scale': expected",
        ),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            call()
