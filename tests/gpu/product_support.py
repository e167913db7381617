"""Helpers that tests of products of groups, and with FP8 weights, share."""

import itertools

import octofold
from octofold import tuning

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    dequantized,
    normal,
    operand,
    plain,
    product_candidates,
    torch,
)
from tests.gpu.targets import is_hopper

# No sums in slices of K: groups have none either.
PLAIN = plain("64x64.w1.c1x1x1.b1.alternating")
PLAIN_FAST = plain("64x64.w1.c1x1x1.b1")

SIZES = (
    (1,),
    (0, 5, 0),
    (64, 128, 256, 8),
    (130, 1, 0, 77, 300, 63),
    (0, 0, 900, 3, 3, 0, 129, 512, 0),
)
NK = ((128, 128), (264, 400), (640, 1040), (1408, 272), (72, 4112))


def candidates(*phrases, of="rows"):
    return product_candidates("grouped_gemm", f"groups 4 of {of}", *phrases)


def onto_c(b="b e4m3 128x128", of="rows"):
    """The candidates that have C brought by TMA, which are Hopper's."""
    if not ON_GPU or not is_hopper():
        return [None]
    names = candidates(b, "out float32", "c float32", of=of)
    names = [name for name in names if name.endswith(".onto_c")]
    assert names
    return names


def offsets_of(sizes):
    numbers = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
    return numbers.to(DEVICE)


def weights(generator, groups, n, k, granularity, dtype="e4m3"):
    """[G, n, k], each group's scales its own, and those groups one by one."""
    parts = [operand(generator, n, k, dtype, granularity) for _ in range(groups)]
    scales = [part.scale.reshape(1, *part.scale.shape) for part in parts]
    scale = torch.cat(scales).reshape(groups) if granularity == "tensor" else torch.cat(scales)
    # torch stacks no float8
    codes = torch.stack([part.data.view(torch.uint8) for part in parts])
    return octofold.ScaledTensor(codes.view(DTYPES[dtype]), scale, granularity), parts


def grouped_by(candidate, a, b, groups, out, c=None, bias=None, fast=False):
    """octofold.grouped_gemm(out=) by the configuration of that name."""
    addends = {"c": c, "bias": bias}
    with tuning.using(candidate):
        octofold.grouped_gemm(a, b, groups, **addends, fast_accumulation=fast, out=out)


HOSTILE = (
    (0, 100, 50, 200),
    (-5, 7, 300, 2**31 - 1),
    (2**31 - 1, 0, -(2**31), 5),
    (300, 200, 100, 0),
    (17, 17, 17, 17),
)


def assert_nothing_outside(surrounded):
    view, outside = surrounded.view, surrounded._memory.clone()
    outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(torch.nan)
    assert torch.isnan(outside).all()


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
