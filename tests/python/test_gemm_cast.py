"""gemm() of an array that it casts itself: against the operations one after another; bad input."""

import ml_dtypes
import numpy as np
import octofold
import pytest

from tests.python.casting import GRANULARITIES
from tests.python.devices import gemm

SIZES = ((1, 1, 1), (1, 128, 128), (130, 200, 300), (5, 1, 17), (0, 128, 128), (3, 128, 0))
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def operands(rng, m, n, k, dtype="bfloat16", granularity="128x128"):
    """x of rows of different magnitude, in memory of longer ones, and a weight."""
    x = np.exp2(rng.uniform(-2, 2, (m, 1))) * rng.normal(0, 1, (m, 2 * k))
    if m > 100:
        x[1, k + 5], x[2, -1] = np.nan, np.inf
    w = rng.normal(0, 1, (n, k)).astype(np.float32)
    return x.astype(DTYPES[dtype])[:, k:], octofold.quantize(w, granularity)


def quantized(x, options):
    """The cast of these fields of a Format."""
    return octofold.quantize(x, octofold.Format(**options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_is_the_cast_and_the_product(dtype, granularity, rng):
    # (The library goes through the rows in bands.)
    for m, n, k in (*SIZES, (1100, 17, 130)):
        x, b = operands(rng, m, n, k, dtype, granularity)
        bias = rng.normal(0, 1, n).astype(np.float32)
        for out_dtype in DTYPES:
            for options in (
                {},
                {"power_of_two": True, "overflow": "nan", "rule": "vllm", "dtype": "e5m2"},
                {"rule": "te"},
            ):
                format = octofold.Format(**options)
                y = octofold.gemm(x, b, bias=bias, format=format, out_dtype=out_dtype)
                a = quantized(x, options)
                expected = octofold.gemm(a, b, bias=bias, out_dtype=out_dtype)
                assert y.dtype == expected.dtype
                expected = expected.astype(np.float32)
                np.testing.assert_array_equal(y.astype(np.float32), expected)
                memory = np.full((m, n + 3), np.nan, y.dtype)
                octofold.gemm(x, b, bias=bias, format=format, out=memory[:, :n])
                np.testing.assert_array_equal(memory[:, :n].astype(np.float32), expected)
                assert np.isnan(memory[:, n:].astype(np.float32)).all()


@pytest.mark.usefixtures("each_device")
def test_leading_dimensions(rng):
    x, b = operands(rng, 12, 72, 256)
    flat = gemm(x, b)
    y = gemm(x.copy().reshape(3, 4, 256), b)
    assert y.shape == (3, 4, 72)
    np.testing.assert_array_equal(y.reshape(12, 72).view("u2"), flat.view("u2"))
    assert gemm(x[:0], b).shape == (0, 72)


X = np.ones((5, 256), ml_dtypes.bfloat16)
B = octofold.quantize(np.ones((300, 256), np.float32), "128x128")
FEW_SCALES = octofold.ScaledTensor(B.data, B.scale[:1], "128x128")
SHORT = octofold.quantize(np.ones((300, 128), np.float32), "128x128")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": B.data}, "argument 'a': expected dtype float32 or float16 or bfloat16, got e4m3"),
        ({"a": X[0]}, "argument 'a': expected a matrix"),
        ({"a": X.T}, "argument 'a'"),
        ({"a": None}, "argument 'a'"),
        ({"b": X}, "argument 'b': expected a ScaledTensor, got ndarray"),
        ({"b": SHORT}, "argument 'b': expected K = 256 columns as in 'a', got 128"),
        ({"b": octofold.ScaledTensor(X, B.scale, "128x128")}, "argument 'b': expected dtype e4m3"),
        ({"b": FEW_SCALES}, "argument 'b.scale': expected shape"),
        ({"bias": np.ones(5, np.float32)}, "argument 'bias': expected shape [300]"),
        ({"bias": np.ones(300, np.float16)}, "argument 'bias': expected dtype bfloat16 or float32"),
        ({"out_dtype": "e4m3"}, "argument 'out_dtype': expected one of float32, float16, bfloat16"),
        ({"out": np.ones((5, 299), np.float32)}, "argument 'out': expected shape [5, 300]"),
        (
            {"out": np.zeros((5, 300), B.dtype)},
            "argument 'out': expected dtype bfloat16 or float16 or float32",
        ),
        ({"fast_accumulation": True}, "argument 'fast_accumulation'"),
        ({"format": "float16"}, "argument 'format': expected at most one word of each kind"),
        ({"format": "channel"}, "argument 'format': expected one of granularity 1x128"),
        ({"format": 3}, "argument 'format': expected a Format or a text, got 3"),
        ({"c": np.ones((5, 300), np.float32)}, "'c': expected it to be omitted beside an 'a'"),
        ({"a": B, "format": "e5m2"}, "'format': expected it to be omitted for an 'a'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(octofold.InvalidArgumentError) as error:
        octofold.gemm(**{"a": X, "b": B, **arguments})
    assert message in str(error.value)
