"""Products of groups of K: weight gradients of all experts, added to FP32 sums."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import octofold
import torch
from octofold import ScaledTensor
from octofold_tool.gpu.check import float64_rows
from torch import Tensor

from . import doors, peers
from .cases import BLOCK, Case, around, k_columns, offsets_of, on_device
from .rows import NAN_CODE
from .ways import ERROR_LIMITS, OURS, SOME, Build, Way, sets_of

PAIRS = (("1x128", "1x128"), ("1x128", "channel"), ("1x128", "128x128"), ("channel", "channel"))
ROWS = 64  # of each group's result are compared
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


def scaled(data: Tensor, granularity: str) -> ScaledTensor:
    """With scales drawn at random, laid out as a cast lays them out."""
    rows, columns = data.shape

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, device=data.device) + 0.5

    scale = random(1 if granularity == "tensor" else rows)
    if granularity == "1x128":
        scale = random(columns // BLOCK, rows).t()
    elif granularity == "128x128":
        scale = random(-(-rows // BLOCK), columns // BLOCK)
    return ScaledTensor(data, scale, granularity)


@dataclass(frozen=True)
class Operands:
    """a [M, K], b [N, K] in the layout of the groups; out [G, M, N]."""

    a: Tensor
    b: Tensor
    out: Tensor


def parts(data: Tensor, offsets: Sequence[int]) -> list[Tensor]:
    """Each group's columns."""
    return [data[:, first:last] for first, last, _ in k_columns(offsets)]


class Reference:
    """Some elements of each group's product, in FP64."""

    def __init__(self, a: Any, b: Any, ranges: Sequence[tuple[int, int]]) -> None:
        """a [M, K], b [N, K]; ranges: of each group its columns."""
        device = (a if isinstance(a, Tensor) else a.data).device
        m, n = a.shape[0], b.shape[0]
        self._rows = torch.randperm(m, device=device)[:ROWS]
        self._columns = torch.randperm(n, device=device)[:SOME]
        left, right = float64_rows(a, self._rows), float64_rows(b, self._columns)
        products = [left[:, begin:end] @ right[:, begin:end].T for begin, end in ranges]
        self.expected = torch.stack(products)

    def error(self, out: Tensor, added: float = 0.0) -> float:
        """Of out [G, M, N]: the products, and what was there before."""
        if not torch.isfinite(out).all():
            return float("nan")
        got = out[:, self._rows][:, :, self._columns].double() - added
        return float(torch.linalg.norm(got - self.expected) / torch.linalg.norm(self.expected))


def k_groups(case: Case, pairs: Sequence[tuple[str, str]], device: Any) -> Iterator[Build]:
    """Sizes that are multiples of 128, which all can do; ours of any sizes too."""
    m, n = case.sizes
    sums = [torch.zeros(case.groups, m, n, device=device) for _ in range(sets_of(bytes_of(case)))]
    for multiple, suffix in ((BLOCK, ""), (1, ", unaligned")):
        offsets = offsets_of(around(case, multiple))
        sets = [Operands(*(codes(rows, offsets, device) for rows in (m, n)), s) for s in sums]
        for pair in pairs:
            name = f"{OURS} {'·'.join(pair)}{suffix}"
            yield Build(name, partial(ours, name, sets, offsets, pair), pair)
        if not suffix:
            peer = f"{peers.DEEPGEMM} 1x128·1x128"
            yield Build(peer, partial(deepgemm, peer, sets, offsets))
            for peer, build in ((peers.ROWWISE, rowwise), (peers.BFLOAT16, bfloat16)):
                peer = f"{peer}, BF16 out"
                yield Build(peer, partial(build, peer, sets, offsets))


def ours(
    name: str,
    sets: Sequence[Operands],
    offsets: Sequence[int],
    pair: tuple[str, str],
    candidate: str | None = None,
) -> Way:
    device = sets[0].a.device
    where = on_device(offsets, device)
    scaled_sets = [(scaled(s.a, pair[0]), scaled(s.b, pair[1]), s.out) for s in sets]
    calls = [doors.k_groups(a, b, where, sums, sums, candidate) for a, b, sums in scaled_sets]
    a, b, sums = scaled_sets[0]
    reference = Reference(a, b, [(first, last) for first, last, _ in k_columns(offsets)])

    def error() -> float:
        """Of the product added to ones, and of it alone."""
        alone = 0.0
        if candidate is None:
            sums.fill_(torch.nan)
            octofold.grouped_gemm_k(a, b, where, out=sums)
            alone = reference.error(sums)
        sums.fill_(1)
        calls[0]()
        added = reference.error(sums, 1.0)
        sums.fill_(0)
        return math.hypot(alone, added)  # NaN if one is

    return Way(name, calls, error, ERROR_LIMITS[torch.float32])


def compact(data: Tensor, offsets: Sequence[int], order: Literal["rows", "groups"]) -> Tensor:
    """Groups without columns between them: as one matrix, or each as a matrix of its own."""
    pieces = parts(data.view(torch.uint8), offsets)
    if order == "rows":
        return torch.cat(pieces, dim=1).view(FP8)
    return torch.cat([piece.reshape(-1) for piece in pieces]).view(FP8)


def deepgemm(name: str, sets: Sequence[Operands], offsets: Sequence[int]) -> Way:
    """1x128 · 1x128 into FP32 sums; sizes are known to the host too."""
    function = peers.deep_gemm().k_grouped_fp8_gemm_nt_contiguous
    sizes = [end - begin for begin, end in itertools.pairwise(offsets)]
    device = sets[0].a.device
    layout = on_device(sizes, device)
    calls, references = [], []
    for s in sets:
        wholes = [scaled(compact(data, offsets, "rows"), "1x128") for data in (s.a, s.b)]
        codes_ = [compact(data, offsets, "groups") for data in (s.a, s.b)]
        sides = [(data, whole.scale) for data, whole in zip(codes_, wholes, strict=True)]
        calls.append(partial(function, *sides, s.out, sizes, layout, c=s.out))
        if not references:
            ranges = list(itertools.pairwise(offsets))
            references.append(Reference(*wholes, ranges))
    sums = sets[0].out

    def error() -> float:
        sums.fill_(1)
        calls[0]()
        result = references[0].error(sums, 1.0)
        sums.fill_(0)
        return result

    return Way(name, calls, error)


def rowwise(name: str, sets: Sequence[Operands], offsets: Sequence[int]) -> Way:
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
    reference = Reference(*flat, list(itertools.pairwise(offsets)))
    return Way(name, calls, lambda: reference.error(calls[0]()))


def bfloat16(name: str, sets: Sequence[Operands], offsets: Sequence[int]) -> Way:
    """Of what autograd has: dYᵀ · X of rows sorted by group, into new BF16."""
    ends = on_device(offsets[1:], sets[0].a.device)
    wide = [
        [compact(data, offsets, "rows").to(torch.bfloat16).t().contiguous() for data in (s.a, s.b)]
        for s in sets
    ]
    calls = [partial(peers.grouped_mm, a.t(), b, ends) for a, b in wide]
    a, b = (side.t() for side in wide[0])
    reference = Reference(a, b, list(itertools.pairwise(offsets)))
    return Way(name, calls, lambda: reference.error(calls[0]()))
