"""Helpers that tests of products of groups share."""

import itertools

import octofold
from octofold._ops.grouped_gemm import multiply_groups

from tests.gpu.gpu_support import DEVICE, DTYPES, ON_GPU, operand, plain, product_candidates, torch
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


def candidates(grouping="rows", a="1x128", b="128x128", **fields):
    return product_candidates(grouping=grouping, a_granularity=a, b_granularity=b, **fields)


def onto_c(**fields):
    """The candidates that have C brought by TMA, which are Hopper's."""
    if not ON_GPU or not is_hopper():
        return [None]
    names = [name for name in candidates(**fields) if name.endswith(".onto_c")]
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
    multiply_groups(a, b, groups, c, bias, None, (fast, False), out, None, candidate)


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
