"""gemm() of an array that it casts itself: against the operations one after another."""

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
