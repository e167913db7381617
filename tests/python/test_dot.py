"""The dot product of NumPy's vectors against FP64."""

import math

import numpy as np
import pytest
from octofold import ScaledTensor, quantize

from tests.cases.shapes import DOTS
from tests.python import reference
from tests.python.devices import dot, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")

DTYPES = ("float32", "float16", "bfloat16", "e4m3", "e5m2")


def vector(rng, size, dtype):
    return (4 * rng.normal(size=size)).astype(np.float32).astype(reference.DTYPES[dtype])


def scaled(rng, size, dtype, granularity):
    data = vector(rng, size, dtype)
    blocks = -(-size // 128)
    shape = {"tensor": (1,), "channel": (), "1x128": (blocks,), "128x128": (1, blocks)}[granularity]
    scale = np.exp2(rng.uniform(-8, 4, shape)).astype(np.float32)
    return ScaledTensor(data, np.asarray(scale), granularity)


def values_of(x):
    if not isinstance(x, ScaledTensor):
        return x.astype(np.float64)
    scale = x.scale.reshape(-1).astype(np.float64)
    if x.granularity in ("1x128", "128x128"):
        scale = np.repeat(scale, 128)[: x.shape[-1]]
    return x.data.astype(np.float64) * scale


def assert_dot(a, b):
    left, right = values_of(a), values_of(b)
    actual = dot(a, b)
    assert actual.shape == ()
    assert actual.dtype == np.float32
    limit = 2e-6 if on_gpu() else 1e-6
    assert abs(float(actual) - left @ right) <= limit * (abs(left) @ abs(right)) + 1e-30
    assert dot(a, b) == actual


@pytest.mark.parametrize("b_dtype", DTYPES)
@pytest.mark.parametrize("a_dtype", DTYPES)
def test_of_every_pair_of_types(a_dtype, b_dtype, rng):
    for size in DOTS:
        assert_dot(vector(rng, size, a_dtype), vector(rng, size, b_dtype))


@pytest.mark.parametrize("b_granularity", [None, *reference.GRANULARITIES])
@pytest.mark.parametrize("a_granularity", reference.GRANULARITIES)
def test_of_every_pair_of_granularities(a_granularity, b_granularity, rng):
    for size in DOTS:
        a = scaled(rng, size, "e4m3", a_granularity)
        if b_granularity is None:
            assert_dot(a, vector(rng, size, "float16"))
            assert_dot(vector(rng, size, "bfloat16"), a)
        else:
            assert_dot(a, scaled(rng, size, "e5m2", b_granularity))


def placed(x, offset):
    """A copy that begins so many elements behind an aligned address, among NaN."""
    memory = np.full(x.size + 64, np.nan, np.float32).astype(x.dtype)
    memory[offset : offset + x.size] = x
    return memory[offset : offset + x.size]


def test_of_vectors_anywhere(rng):
    for size in (1, 15, 130, 8300, 50_000):
        a, b = vector(rng, size, "e4m3"), vector(rng, size, "float32")
        for a_offset, b_offset in ((1, 0), (0, 1), (3, 2), (16, 4), (4, 4)):
            assert_dot(placed(a, a_offset), placed(b, b_offset))
            assert_dot(placed(a, a_offset), placed(a, b_offset))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_decodes_every_code(dtype):
    codes = np.arange(256, dtype=np.uint8).view(reference.DTYPES[dtype])
    one = np.ones(1, np.float32)
    for code in range(256):
        expected = codes[code].astype(np.float32)
        for other in (one, one.astype(reference.DTYPES[dtype])):
            np.testing.assert_array_equal(dot(codes[code : code + 1], other), expected)


def test_of_rows_of_casts(rng):
    x = rng.normal(size=(3, 500)).astype(np.float32)
    for granularity in reference.GRANULARITIES[1:3]:
        cast = quantize(x, granularity)
        expected = cast.dequantize().astype(np.float64)
        row = cast[1:2]
        assert dot(row, x[0]) == pytest.approx(expected[1] @ x[0], abs=1e-3)
        assert dot(row, row) == pytest.approx(expected[1] @ expected[1], rel=1e-5)


def test_of_nothing_is_zero():
    """Its scale is not looked at."""
    nothing = np.zeros(0, np.float32)
    codes = ScaledTensor(nothing.astype(reference.DTYPES["e5m2"]), np.float32([np.nan]), "tensor")
    assert dot(nothing, codes) == 0


def test_writes_into_out(rng):
    for size in (0, 100, 20_000):
        a, b = scaled(rng, size, "e4m3", "1x128"), vector(rng, size, "float32")
        memory = np.full(3, np.nan, np.float32)
        for out in (np.full((), np.nan, np.float32), memory[1:2], memory[1:2].reshape(1, 1)):
            assert dot(a, b, out=out) is out
            assert out.reshape(()) == dot(a, b)
        assert np.isnan(memory).tolist() == [True, False, True]


def test_nan_and_infinity_follow_ieee_rules():
    one = np.ones(4, np.float32)
    assert math.isnan(dot(one, np.float32([1, np.nan, 0, 0])))
    assert dot(one, np.float32([1, np.inf, 0, 0])) == math.inf
    assert math.isnan(dot(np.zeros(4, np.float32), np.float32([1, np.inf, 0, 0])))
    for dtype in ("e4m3", "e5m2"):
        codes = np.uint8([0x38, 0x7F, 0, 0]).view(reference.DTYPES[dtype])
        assert math.isnan(dot(one, codes))
    for size in (1, 300, 20_000):
        cast = quantize(np.ones(size, np.float32)[None])
        cast.data.view(np.uint8)[0, size // 2] = 0x7F
        assert math.isnan(dot(cast[0:1], np.ones(size, np.float16)))
