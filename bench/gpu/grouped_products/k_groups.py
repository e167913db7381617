"""Products of groups of K: weight gradients of all experts, added to FP32 sums."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import octofold
import torch
from common import candidates
from common.measure import ERROR_LIMITS, Implementation
from common.operands import NAN_CODE, poison, sets_of, with_scales
from common.run import Run
from octofold import Depth, ScaledTensor
from torch import Tensor

from . import peers
from .cases import (
    BLOCK,
    OURS,
    Case,
    Variant,
    aligned,
    around,
    k_columns,
    offsets_of,
    on_device,
    zipf,
)
from .reference import DepthReference

PAIRS = (("1x128", "1x128"), ("1x128", "channel"), ("1x128", "128x128"), ("channel", "channel"))
RECIPE = ("1x128", "channel")  # of octofold.nn's "blockwise"
GRADIENT_PAIRS = (RECIPE, ("1x128", "1x128"), ("tensor", "tensor"))
FP8 = torch.float8_e4m3fn


def bytes_of(case: Case) -> int:
    """Codes and FP32 sums, which are read and written; scales are less than 4 % of the codes."""
    m, n = case.sizes
    return (m + n) * case.rows + 8 * case.groups * m * n


def codes(rows: int, offsets: Sequence[int], device: Any) -> Tensor:
    """[rows, columns] in the layout of K groups: normal values, zeros from a group's end to its
    scale's, and NaN in the columns of nobody, which nothing may read."""
    columns = BLOCK * (offsets[-1] // BLOCK + len(offsets) - 1)
    memory = torch.full((rows, columns), NAN_CODE, dtype=torch.uint8, device=device)
    for first, last, whole in k_columns(offsets):
        values = torch.randn(rows, last - first, device=device).to(FP8)
        memory[:, first:last] = values.view(torch.uint8)
        memory[:, last:whole] = 0
    return memory.view(FP8)


@dataclass(frozen=True)
class Operands:
    """a [M, K], b [N, K] in the layout of the groups; out [G, M, N]."""

    a: Tensor
    b: Tensor
    out: Tensor


def parts(data: Tensor, offsets: Sequence[int]) -> list[Tensor]:
    """Each group's columns."""
    return [data[:, first:last] for first, last, _ in k_columns(offsets)]


def k_groups(case: Case, run: Run) -> Iterator[Variant]:
    """Added to FP32 sums. Sizes that are multiples of 128, which all can do; ours of any sizes."""
    m, n = case.sizes
    sums = sets_of(lambda: torch.zeros(case.groups, m, n, device=run.device), bytes_of(case), run)
    for multiple, suffix in ((BLOCK, ""), (1, ", unaligned")):
        offsets = offsets_of(around(case, multiple))
        sets = operands(case, offsets, sums)
        for pair in PAIRS:
            yield Variant(
                f"{OURS} {'·'.join(pair)}{suffix}", partial(ours, sets, offsets, pair), pair
            )
        if not suffix:
            yield Variant(f"{peers.DEEPGEMM} 1x128·1x128", partial(deepgemm, sets, offsets))
            yield Variant(f"{peers.ROWWISE}, BF16 out", partial(rowwise, sets, offsets))
            yield Variant(f"{peers.BFLOAT16}, BF16 out", partial(bfloat16, sets, offsets))


def gradient_bytes(case: Case) -> int:
    m, n = case.sizes
    return (m + n) * case.rows + 2 * case.groups * m * n


def gradients(case: Case, exponent: float, run: Run) -> Iterator[Variant]:
    """Into new BF16, as an expert layer's backward takes them. Groups as routing gives them; by the
    recipe's pair also equal ones, which torch takes too."""
    shape = case.groups, *case.sizes
    outs = sets_of(
        lambda: torch.empty(shape, dtype=torch.bfloat16, device=run.device),
        gradient_bytes(case),
        run,
    )
    routed, equal = offsets_of(zipf(case.rows, case.groups, exponent)), offsets_of(aligned(case))
    for offsets, suffix, pairs in (
        (routed, ", zipf", GRADIENT_PAIRS),
        (equal, "", GRADIENT_PAIRS[:1]),
    ):
        sets = operands(case, offsets, outs)
        for pair in pairs:
            yield Variant(
                f"{OURS} {'·'.join(pair)}{suffix}", partial(ours, sets, offsets, pair), pair
            )
        if not suffix:
            yield Variant(peers.ROWWISE, partial(rowwise, sets, offsets))
            yield Variant(peers.BFLOAT16, partial(bfloat16, sets, offsets))


def operands(case: Case, offsets: Sequence[int], outs: Sequence[Tensor]) -> list[Operands]:
    return [
        Operands(*(codes(rows, offsets, out.device) for rows in case.sizes), out) for out in outs
    ]


def ours(
    sets: Sequence[Operands],
    offsets: Sequence[int],
    pair: tuple[str, str],
    candidate: str | None = None,
) -> Implementation:
    """Added to what is there if that is FP32."""
    where = on_device(offsets, sets[0].a.device)
    out = sets[0].out
    adds = out.dtype == torch.float32
    scaled = [(with_scales(s.a, pair[0]), with_scales(s.b, pair[1]), s.out) for s in sets]
    calls = [
        candidates.grouped_gemm(a, b, Depth(where), out, candidate, out if adds else None)
        for a, b, out in scaled
    ]
    a, b, _ = scaled[0]
    reference = DepthReference(a, b, [(first, last) for first, last, _ in k_columns(offsets)])

    def error() -> float:
        """Returns the error of the product alone, and of it added to ones, in one number."""
        alone = 0.0
        if candidate is None or not adds:
            poison(out)
            by_itself = partial(octofold.grouped_gemm, a, b, Depth(where), out=out)
            (by_itself if adds else calls[0])()
            alone = reference.error(out)
        if not adds:
            return alone
        out.fill_(1)
        calls[0]()
        added = reference.error(out, 1.0)
        out.fill_(0)
        return math.hypot(alone, added)  # NaN if one is

    return Implementation(calls, error, ERROR_LIMITS[out.dtype])


def compact(data: Tensor, offsets: Sequence[int], order: Literal["rows", "groups"]) -> Tensor:
    """Groups without columns between them: as one matrix, or each as a matrix of its own."""
    pieces = parts(data.view(torch.uint8), offsets)
    if order == "rows":
        return torch.cat(pieces, dim=1).view(FP8)
    return torch.cat([piece.reshape(-1) for piece in pieces]).view(FP8)


def deepgemm(sets: Sequence[Operands], offsets: Sequence[int]) -> Implementation:
    """1x128 · 1x128 into FP32 sums; sizes are known to the host too."""
    function = peers.deep_gemm().k_grouped_fp8_gemm_nt_contiguous
    sizes = [end - begin for begin, end in itertools.pairwise(offsets)]
    device = sets[0].a.device
    layout = on_device(sizes, device)
    calls, references = [], []
    for s in sets:
        wholes = [with_scales(compact(data, offsets, "rows"), "1x128") for data in (s.a, s.b)]
        codes_ = [compact(data, offsets, "groups") for data in (s.a, s.b)]
        sides = [(data, whole.scale) for data, whole in zip(codes_, wholes, strict=True)]
        calls.append(partial(function, *sides, s.out, sizes, layout, c=s.out))
        if not references:
            ranges = list(itertools.pairwise(offsets))
            references.append(DepthReference(*wholes, ranges))
    sums = sets[0].out

    def error() -> float:
        sums.fill_(1)
        calls[0]()
        result = references[0].error(sums, 1.0)
        sums.fill_(0)
        return result

    return Implementation(calls, error)


def rowwise(sets: Sequence[Operands], offsets: Sequence[int]) -> Implementation:
    """Into new BF16, nothing added."""
    device = sets[0].a.device
    ends = on_device(offsets[1:], device)
    calls = []
    first = None
    for s in sets:
        a, b = (compact(data, offsets, "rows") for data in (s.a, s.b))
        scale_a, scale_b = (
            torch.ones((len(offsets) - 1) * len(data), device=device) for data in (a, b)
        )
        arguments = a, b.t(), scale_a, scale_b
        options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
        calls.append(partial(torch._scaled_grouped_mm, *arguments, offs=ends, **options))
        first = first or (a, b)
    a, b = first
    one = torch.ones(1, device=device)
    flat = [ScaledTensor(data, one, "tensor") for data in (a, b)]
    reference = DepthReference(*flat, list(itertools.pairwise(offsets)))
    return Implementation(calls, lambda: reference.error(calls[0]()))


def bfloat16(sets: Sequence[Operands], offsets: Sequence[int]) -> Implementation:
    """The product that autograd has: dYᵀ · X of rows sorted by group, into new BF16."""
    ends = on_device(offsets[1:], sets[0].a.device)
    wide = [
        [compact(data, offsets, "rows").to(torch.bfloat16).t().contiguous() for data in (s.a, s.b)]
        for s in sets
    ]
    calls = [partial(peers.grouped_mm, a.t(), b, ends) for a, b in wide]
    a, b = (side.t() for side in wide[0])
    reference = DepthReference(a, b, list(itertools.pairwise(offsets)))
    return Implementation(calls, lambda: reference.error(calls[0]()))
