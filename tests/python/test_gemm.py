"""GEMM against FP64, over the table of cases."""

import numpy as np
import octofold
import pytest

from tests.cases.gemm import CASE_NAMES, CASES, PAIRS
from tests.python import judge, reference
from tests.python.devices import cpu_only, gemm, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")


def assert_close(out, expected, terms, dtype):
    limit = judge.TENSOR_CORE_ACCUMULATION if on_gpu() else judge.ACCUMULATION
    judge.assert_close(out.astype(np.float64), expected, terms, dtype, limit)


def padded(matrix, padding):
    """A view with `padding` poisoned columns behind it."""
    rows, cols = matrix.shape
    memory = np.full((rows, cols + padding), np.nan, np.float32).astype(matrix.dtype)
    memory[:, :cols] = matrix
    return memory[:, :cols]


def operand(rng, rows, cols, dtype, granularity, padding, power_of_two):
    """Scales of neighbours differ, so that one that is taken for another shows."""
    x = rng.normal(0, 1, (rows, cols)).astype(np.float32)
    cast = octofold.quantize(x, octofold.Format(dtype, granularity, power_of_two=power_of_two))
    scale = cast.scale * np.exp2(rng.integers(-2, 3, cast.scale.shape)).astype(np.float32)
    return octofold.ScaledTensor(padded(cast.data, padding), scale, granularity)


def product(a, b):
    left, right = (reference.dequantize(x.data, x.scale, x.granularity) for x in (a, b))
    return left @ right.T


def magnitude(a, b):
    """Sum of the magnitudes that each element of the product sums."""
    left, right = (reference.dequantize(x.data, x.scale, x.granularity) for x in (a, b))
    return abs(left) @ abs(right).T


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_case(case, rng):
    m, n, k, padding = (int(case[name]) for name in ("m", "n", "k", "row_padding"))
    power_of_two, dtype = case["power_of_two"] == "1", case["d_dtype"]
    options = (padding, power_of_two)
    a = operand(rng, m, k, case["a_dtype"], case["granularity_a"], *options)
    b = operand(rng, n, k, case["b_dtype"], case["granularity_b"], *options)
    expected, terms = product(a, b), magnitude(a, b)

    out = padded(np.full((m, n), np.nan, np.float32).astype(reference.DTYPES[dtype]), padding)
    c = bias = None
    if case["c"] != "none":
        c_dtype = np.float32 if case["c"] == "float32" else out.dtype
        c = padded(rng.normal(0, 1, (m, n)).astype(c_dtype), padding)
        expected = expected + c.astype(np.float64)
        terms = terms + abs(c.astype(np.float64))
    if case["bias"] != "none":
        bias_dtype = np.float32 if case["bias"] == "float32" else out.dtype
        bias = rng.normal(0, 1, n).astype(bias_dtype)
        expected = expected + bias.astype(np.float64)
        terms = terms + abs(bias.astype(np.float64))
    if case["c"] == "in_place":
        out[:] = c
        c = out

    fresh = gemm(a, b, c=c, bias=bias, out_dtype=dtype)
    assert gemm(a, b, out=out, c=c, bias=bias) is out
    assert_close(out, expected, terms, dtype)
    np.testing.assert_array_equal(fresh, out)  # the same input, the same bits
    if padding and out.size:
        assert np.all(np.isnan(out.base[:, n:].astype(np.float32)))


# How small the results are: all of them subnormal in FP16, about half, none.
@pytest.mark.parametrize("size", [1e-6, 2.0**-14, 1.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_element_keeps_the_bound(rng, dtype, size):
    m, n, k = 70, 90, 300
    a = octofold.quantize(rng.normal(0, size / k**0.5, (m, k)).astype(np.float32))
    b = octofold.quantize(rng.normal(0, 1, (n, k)).astype(np.float32), "128x128")
    expected = product(a, b)
    out = gemm(a, b, out_dtype=dtype)
    assert_close(out, expected, magnitude(a, b), dtype)


every_pair = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


@every_pair
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_specials_propagate(special, pair, rng):
    """By IEEE rules: a NaN or Inf reaches its row of the product and no other."""
    x = rng.normal(0, 1, (150, 700)).astype(np.float32)
    codes = octofold.ops.convert_dtype(x, "e5m2")
    codes[77, 650] = special
    shape = octofold.ops.scale_shape(pair[0], *x.shape)
    a = octofold.ScaledTensor(codes, np.ones(shape, np.float32), pair[0])
    b = operand(rng, 200, 700, "e4m3", pair[1], 0, False)
    with np.errstate(invalid="ignore"):  # infinity times zero
        expected = product(a, b)
    out = gemm(a, b, out_dtype="float32")
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
    np.testing.assert_array_equal(np.sign(out[77]), np.sign(expected[77]))
    assert not np.any(np.isfinite(out[77]))


def test_a_nan_scale_reaches_its_block_only(rng):
    a, b = (
        operand(rng, 300, 512, "e4m3", granularity, 0, False)
        for granularity in ("1x128", "128x128")
    )
    b.scale[1, 2] = np.nan
    is_nan = np.isnan(gemm(a, b).astype(np.float32))
    assert is_nan[:, 128:256].all()
    assert is_nan.sum() == 300 * 128


@every_pair
def test_scales_may_be_far_apart(pair, rng):
    """Dequantizing the operands first would lose everything to overflow."""
    a, b = (
        operand(rng, rows, 384, "e4m3", granularity, 0, False)
        for rows, granularity in zip((130, 140), pair, strict=True)
    )
    expected, terms = product(a, b), magnitude(a, b)
    a.scale[...] *= np.float32(2.0**100)
    b.scale[...] *= np.float32(2.0**-100)
    assert_close(gemm(a, b, out_dtype="float32"), expected, terms, "float32")


def test_default_output_is_bfloat16(rng):
    a = operand(rng, 4, 64, "e4m3", "1x128", 0, False)
    assert gemm(a, a).dtype == reference.DTYPES["bfloat16"]


@cpu_only
def test_fast_accumulation_is_a_permission(rng):
    a = operand(rng, 4, 640, "e4m3", "channel", 0, False)
    exact = gemm(a, a, out_dtype="float32")
    np.testing.assert_allclose(
        gemm(a, a, out_dtype="float32", fast_accumulation=True), exact, rtol=1e-2
    )


@pytest.mark.parametrize("a_granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("b_granularity", reference.GRANULARITIES)
def test_leading_dimensions_and_every_pair(a_granularity, b_granularity, rng):
    x = rng.normal(0, 1, (3, 50, 300)).astype(np.float32)
    a = octofold.quantize(x, a_granularity)
    flat = octofold.quantize(x.reshape(150, 300), a_granularity)
    b = operand(rng, 70, 300, "e4m3", b_granularity, 0, False)
    bias, c = np.ones(70, np.float32), rng.normal(0, 1, (3, 50, 70)).astype(np.float32)
    result = gemm(a, b, c=c, bias=bias, out_dtype="float32")
    assert result.shape == (3, 50, 70)
    addends = c.reshape(150, 70).astype(np.float64)
    expected, terms = product(flat, b) + addends + 1, magnitude(flat, b) + abs(addends) + 1
    assert_close(result.reshape(150, 70), expected, terms, "float32")
    out = np.empty((3, 50, 70), np.float32)
    assert gemm(a, b, out=out, c=c, bias=bias) is out
    np.testing.assert_array_equal(out, result)


@cpu_only
def test_rows_of_any_stride(rng):
    b = operand(rng, 70, 300, "e4m3", "1x128", 0, False)
    a = operand(rng, 6, 300, "e4m3", "tensor", 0, False)
    for codes in (a.data[::-1], np.broadcast_to(a.data[2], a.data.shape)):
        view, copy = (octofold.ScaledTensor(x, a.scale, "tensor") for x in (codes, codes.copy()))
        np.testing.assert_array_equal(
            gemm(view, b[:], out_dtype="float32"),
            gemm(copy, b, out_dtype="float32"),
        )
