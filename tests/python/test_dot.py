"""The dot product of NumPy's vectors against FP64."""

import math

import numpy as np
import pytest
from octofold import InvalidArgumentError, ScaledTensor, ops, quantize

from tests.python import reference

DTYPES = ("float32", "float16", "bfloat16", "e4m3", "e5m2")
SIZES = (0, 1, 127, 128, 1000, 70_001)


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
    actual = ops.dot(a, b)
    assert actual.shape == ()
    assert actual.dtype == np.float32
    assert abs(float(actual) - left @ right) <= 1e-6 * (abs(left) @ abs(right)) + 1e-30


@pytest.mark.parametrize("b_dtype", DTYPES)
@pytest.mark.parametrize("a_dtype", DTYPES)
def test_of_every_pair_of_types(a_dtype, b_dtype, rng):
    for size in SIZES:
        assert_dot(vector(rng, size, a_dtype), vector(rng, size, b_dtype))


@pytest.mark.parametrize("b_granularity", [None, *reference.GRANULARITIES])
@pytest.mark.parametrize("a_granularity", reference.GRANULARITIES)
def test_of_every_pair_of_granularities(a_granularity, b_granularity, rng):
    for size in SIZES:
        a = scaled(rng, size, "e4m3", a_granularity)
        if b_granularity is None:
            assert_dot(a, vector(rng, size, "float16"))
            assert_dot(vector(rng, size, "bfloat16"), a)
        else:
            assert_dot(a, scaled(rng, size, "e5m2", b_granularity))


def test_of_rows_of_casts(rng):
    x = rng.normal(size=(3, 500)).astype(np.float32)
    for granularity in reference.GRANULARITIES[1:3]:
        cast = quantize(x, granularity)
        expected = cast.dequantize().astype(np.float64)
        row = cast[1:2]
        assert ops.dot(row, x[0]) == pytest.approx(expected[1] @ x[0], abs=1e-3)
        assert ops.dot(row, row) == pytest.approx(expected[1] @ expected[1], rel=1e-5)


def test_of_nothing_is_zero():
    """Its scale is not looked at."""
    nothing = np.zeros(0, np.float32)
    codes = ScaledTensor(nothing.astype(reference.DTYPES["e5m2"]), np.float32([np.nan]), "tensor")
    assert ops.dot(nothing, codes) == 0


def test_writes_into_out(rng):
    x = vector(rng, 20_000, "float32")
    for out in (np.full((), np.nan, np.float32), np.full((1, 1), np.nan, np.float32)):
        assert ops.dot(x, x, out=out) is out
        assert out.reshape(()) == ops.dot(x, x)


def test_nan_and_infinity_follow_ieee_rules():
    one = np.ones(4, np.float32)
    assert math.isnan(ops.dot(one, np.float32([1, np.nan, 0, 0])))
    assert ops.dot(one, np.float32([1, np.inf, 0, 0])) == math.inf
    assert math.isnan(ops.dot(np.zeros(4, np.float32), np.float32([1, np.inf, 0, 0])))
    for dtype in ("e4m3", "e5m2"):
        codes = np.uint8([0x38, 0x7F, 0, 0]).view(reference.DTYPES[dtype])
        assert math.isnan(ops.dot(one, codes))


def test_says_what_is_wrong(rng):
    x = vector(rng, 300, "float32")
    cast = scaled(rng, 300, "e4m3", "1x128")
    two_level = ScaledTensor(cast.data[None], cast.scale[None], "128x128", np.ones(1, np.float32))
    for call, message in (
        (lambda: ops.dot(x, x[:7]), "argument 'b': expected K = 300, as 'a' has, got K = 7"),
        (lambda: ops.dot(x.reshape(2, 150), x), "argument 'a': expected a vector"),
        (lambda: ops.dot(x[0, ...], x), "argument 'a': expected a vector"),
        (lambda: ops.dot(1.5, x), "argument 'a': expected a NumPy array"),
        (lambda: ops.dot(x, 1.5), "argument 'b': expected a NumPy array"),
        (lambda: ops.dot(x[::2], x[:150]), "argument 'a': expected contiguous"),
        (lambda: ops.dot(x.astype(np.int32), x), "argument 'a': expected dtype"),
        (lambda: ops.dot(x, x.astype(np.float64)), "argument 'b': expected dtype"),
        (lambda: ops.dot(two_level, x), "argument 'a.channel_scale'"),
        (
            lambda: ops.dot(x, ScaledTensor(cast.data, cast.scale[:2], "1x128")),
            "argument 'b.scale': expected shape",
        ),
        (
            lambda: ops.dot(x, ScaledTensor(x, cast.scale, "1x128")),
            "argument 'b': expected dtype e4m3 or e5m2",
        ),
        (lambda: ops.dot(x, x, out=np.empty(2, np.float32)), "'out': expected one element"),
        (lambda: ops.dot(x, x, out=np.empty(1)), "argument 'out': expected dtype float32"),
        (lambda: ops.dot(x, x, out=x[:1]), "'out': expected memory of its own"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
