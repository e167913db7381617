"""Gated products on the GPU: the same bits as of the product, its activation and the cast one after
another; every kernel, on ragged shapes, into poisoned memory."""

import itertools

import octofold
import pytest
from octofold import tuning

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    Surrounded,
    assert_same_bits,
    bits,
    gemm_by,
    operands,
    plain,
    poison,
    product_candidates,
    rows_major,
    skip_without,
    surrounded_copy,
    torch,
    with_data,
    with_scale,
)
from tests.python.casting import RULES

skip_without("gated products")

# One that does not sum K in slices: it rounds its sums as the gated kernels do.
PLAIN = plain("128x128.w2.c1x1x1.b1.early")
CANDIDATES = product_candidates("gated_gemm")

# One row and the least K; tails of tiles, clusters, swizzle atoms and scale blocks; a warpgroup
# without rows; K of fewer stages than the ring has, of as many, of more; an odd number of tiles
# both ways; more tiles than blocks of threads run at one time.
SHAPES = (
    (1, 128, 16),
    (64, 128, 128),
    (70, 384, 400),
    (129, 256, 512),
    (300, 640, 656),
    (205, 128, 4112),
    (513, 1408, 1040),
    (2100, 2048, 272),
    (1100, 4224, 1664),
)


def balanced(generator, m, n, k, dtypes=("e4m3", "e4m3")):
    """a and b of gates and ups about 1, where activations bend; scales of neighbours differ."""
    a, b = operands(generator, m, 2 * n, k, dtypes=dtypes)
    return a, with_scale(b, b.scale * 32 / k**0.5)


def unfused(a, b, activation="swiglu", dtype="e4m3", **cast):
    both = poison(a.shape[0] * b.shape[0], torch.bfloat16).view(a.shape[0], b.shape[0])
    gemm_by(PLAIN, a, b, both)
    source = octofold.ops.Activated(both, activation)
    return octofold.ops.cast(source, rows=octofold.Format(dtype, **cast)).rows


def gated_by(candidate, a, b, codes, scale, activation="swiglu", **cast):
    out = octofold.ScaledTensor(codes, scale, "1x128")
    format = octofold.Format(codes.dtype, **cast)
    with tuning.using(candidate):
        octofold.ops.gated_gemm(a, b, activation=activation, format=format, out=out)


def check(candidate, a, b, activation="swiglu", dtype="e4m3", **cast):
    m, n = a.shape[0], b.shape[0] // 2
    expected = unfused(a, b, activation, dtype, **cast)
    codes = Surrounded(m, n, DTYPES[dtype], padding=16, offset=16)
    scale = Surrounded(m, n // 128, torch.float32, padding=3, offset=1)
    gated_by(candidate, a, b, codes.view, scale.view, activation, **cast)
    assert_same_bits(scale.view.contiguous(), expected.scale.contiguous())
    assert_same_bits(codes.view.contiguous(), expected.data)
    codes.assert_only_view_written()
    scale.assert_only_view_written()


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_every_candidate(candidate, generator):
    for shape in SHAPES:
        check(candidate, *balanced(generator, *shape))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule, generator):
    a, b = balanced(generator, 205, 384, 656)
    bits(a.data)[7] = 0  # a row that each rule treats in its own way
    choices = (False, True), ("saturate", "nan"), ("e4m3", "e5m2")
    for power_of_two, overflow, dtype in itertools.product(*choices):
        cast = {"power_of_two": power_of_two, "overflow": overflow, "rule": rule, "dtype": dtype}
        h = octofold.ops.gated_gemm(a, b, format=octofold.Format(**cast))
        expected = unfused(a, b, **cast)
        assert_same_bits(h.data, expected.data)
        assert_same_bits(h.scale.contiguous(), expected.scale.contiguous())


def test_magnitudes_of_all_sizes(generator):
    """Scales far from 1, and activations at both of their ends."""
    a, b = balanced(generator, 300, 256, 400)
    factors = torch.exp2(torch.linspace(-40, 40, 300, device=DEVICE))[:, None]
    for rule in ("deepgemm", "deepseek"):
        check(None, with_scale(a, a.scale * factors), b, rule=rule)


def test_operands_and_scales_of_any_stride(generator):
    a, b = balanced(generator, 300, 384, 656)
    expected = unfused(a, b)
    spread = (
        with_data(a, surrounded_copy(a.data, 48, 32)),
        with_data(b, surrounded_copy(b.data, 16, 16)),
    )
    for left, right in ((a, b), spread):
        for scale in (left.scale, rows_major(left.scale), surrounded_copy(left.scale, 3, 1)):
            h = octofold.ops.gated_gemm(with_scale(left, scale), right)
            assert_same_bits(h.data, expected.data)
            assert_same_bits(h.scale.contiguous(), expected.scale.contiguous())
    assert h.scale.stride() == (expected.scale.stride() if ON_GPU else (3, 1))
