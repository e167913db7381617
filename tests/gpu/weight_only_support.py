"""Helpers that tests of products with FP8 weights share: how close results have to be."""

import octofold

from tests.gpu.gpu_support import DTYPES, dequantized, normal, operand, torch

ROUNDING = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def values_of(x):
    return dequantized(x) if isinstance(x, octofold.ScaledTensor) else x.double()


def rows_of(generator, rows, cols, dtype, granularity=None):
    """Plain numbers, or codes with scales."""
    if granularity is None:
        return (4 * normal(generator, rows, cols)).to(DTYPES[dtype])
    return operand(generator, rows, cols, dtype, granularity)


def assert_product(out, left, right, bias=None, weight_rounding=0.0):
    """out = left · rightᵀ + bias: FP32 sums, one rounding. `weight_rounding`: what weights lose
    before they are multiplied, of their value."""
    expected, terms = left @ right.T, left.abs() @ right.abs().T
    if bias is not None:
        expected = expected + bias.double()
        terms = terms + bias.double().abs()
    assert not bool(out.isnan().any())
    error = (out.double() - expected).abs()
    # FP16 has no smaller numbers.
    least = 2.0**-24 if out.dtype is torch.float16 else 1e-30
    limit = (5e-6 + weight_rounding) * terms + 1.01 * ROUNDING[out.dtype] * expected.abs() + least
    worst = float((error / limit).max()) if error.numel() else 0.0
    assert worst <= 1, f"{worst:.2f} times the limit"
