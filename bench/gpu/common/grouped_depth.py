"""Products of groups of K: weight gradients of all experts, added to FP32 sums."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import octofold
import torch
from octofold import Depth, ScaledTensor, tuning
from octofold._timing import Call
from octofold_tool.gpu.measuring import NAN_CODE, Implementation, Operand, float64_rows, poison
from torch import Tensor

from common.grouped_rows import deep_gemm, grouped_mm
from common.groups import BFLOAT16, DEEPGEMM, OURS, ROWWISE, Case, offsets_of, on_device
from common.measure import ERROR_LIMITS, Build
from common.operands import sets_of, with_scales
from common.run import Run

PAIRS = (("1x128", "1x128"), ("1x128", "channel"), ("1x128", "128x128"), ("channel", "channel"))
FP8 = torch.float8_e4m3fn
BLOCK = 128  # columns of a scale
ROWS, COLUMNS = 64, 256  # of each result are compared

Offsets = Sequence[int]


@dataclass(frozen=True)
class Operands:
    """a [M, K], b [N, K] in the layout of the groups; out [G, M, N]."""

    a: Tensor
    b: Tensor
    out: Tensor


def places_of(offsets: Offsets) -> list[tuple[int, int, int]]:
    """Each group's first column, the one after its last, and that rounded up to a scale's end:
    group g begins in the block that follows g others and offsets[g] / 128, rounded down."""
    places = []
    for group, (begin, end) in enumerate(itertools.pairwise(offsets)):
        first = BLOCK * (begin // BLOCK + group)
        size = end - begin
        places.append((first, first + size, first + -(-size // BLOCK) * BLOCK))
    return places


def codes(rows: int, offsets: Offsets, device: torch.device) -> Tensor:
    """[rows, columns] in the layout of K groups: normal values, zeros from a group's end to its
    scale's, and NaN in the columns of nobody, which nothing may read."""
    columns = BLOCK * (offsets[-1] // BLOCK + len(offsets) - 1)
    memory = torch.full((rows, columns), NAN_CODE, dtype=torch.uint8, device=device)
    for first, last, whole in places_of(offsets):
        values = torch.randn(rows, last - first, device=device).to(FP8)
        memory[:, first:last] = values.view(torch.uint8)
        memory[:, last:whole] = 0
    return memory.view(FP8)


def operands(case: Case, offsets: Offsets, outs: Sequence[Tensor]) -> list[Operands]:
    return [
        Operands(*(codes(rows, offsets, out.device) for rows in case.sizes), out) for out in outs
    ]


class Reference:
    """Elements of the products in FP64."""

    def __init__(self, a: Operand, b: Operand, ranges: Sequence[tuple[int, int]]) -> None:
        """a [M, K], b [N, K]; ranges: of each group its columns."""
        device = (a if isinstance(a, Tensor) else a.data).device
        self._rows = torch.randperm(a.shape[0], device=device)[:ROWS]
        self._columns = torch.randperm(b.shape[0], device=device)[:COLUMNS]
        left, right = float64_rows(a, self._rows), float64_rows(b, self._columns)
        products = [left[:, begin:end] @ right[:, begin:end].T for begin, end in ranges]
        self.expected = torch.stack(products)

    def error(self, out: Tensor, added: float = 0.0) -> float:
        """The error of out [G, M, N]: the products, plus `added`, which was there before."""
        if not torch.isfinite(out).all():
            return float("nan")
        got = out[:, self._rows][:, :, self._columns].double() - added
        return float(torch.linalg.norm(got - self.expected) / torch.linalg.norm(self.expected))


def k(run: Run, case: Case) -> Iterator[Build]:
    """Added to FP32 sums. Sizes that are multiples of 128, which all can do; ours of any sizes."""
    m, n = case.sizes
    # FP32 sums are read and written; scales are less than 4 % of the codes.
    bytes_ = (m + n) * case.rows + 8 * case.groups * m * n
    sums = sets_of(lambda: torch.zeros(case.groups, m, n, device=run.device), bytes_, run)
    build = build_of(case, bytes_)
    for multiple, suffix in ((BLOCK, ""), (1, ", unaligned")):
        offsets = offsets_of(case.around(multiple))
        sets = operands(case, offsets, sums)
        for pair in PAIRS:
            yield build(f"{OURS} {'·'.join(pair)}{suffix}", by_us, sets, offsets, pair)
        if not suffix:
            yield build(f"{DEEPGEMM} 1x128·1x128", by_deepgemm, sets, offsets)
            yield build(f"{ROWWISE}, BF16 out", by_rowwise, sets, offsets)
            yield build(f"{BFLOAT16}, BF16 out", by_bfloat16, sets, offsets)


def build_of(case: Case, bytes_: int) -> Callable[..., Build]:
    """The builds of functions of sets of operands and offsets; ours takes a pair, too."""

    def build(
        name: str,
        make: Callable[..., Implementation],
        sets: Sequence[Operands],
        offsets: Offsets,
        pair: tuple[str, str] | None = None,
    ) -> Build:
        if pair is None:
            return Build(name, partial(make, sets, offsets), False, bytes_, case.operations)
        names = tuning.candidates(
            f"grouped_gemm: m 128, n 128, k 1024, a e4m3 {pair[0]}, b e4m3 {pair[1]}, out float32, "
            "c float32, groups 4 of k"
        )
        made = partial(make, sets, offsets, pair)
        return Build(name, made, True, bytes_, case.operations, names)

    return build


def by_us(
    sets: Sequence[Operands],
    offsets: Offsets,
    pair: tuple[str, str],
    candidate: str | None = None,
) -> Implementation:
    groups = Depth(on_device(offsets, sets[0].a.device))
    out = sets[0].out
    pairs = [(with_scales(s.a, pair[0]), with_scales(s.b, pair[1])) for s in sets]

    def call_of(a: ScaledTensor, b: ScaledTensor, out: Tensor) -> Call:
        call = tuning.using(candidate)(octofold.grouped_gemm)
        return partial(call, a, b, groups, c=out, out=out)

    calls = [call_of(a, b, s.out) for (a, b), s in zip(pairs, sets, strict=True)]
    a, b = pairs[0]
    reference = Reference(a, b, [(first, last) for first, last, _ in places_of(offsets)])

    def error() -> float:
        """Returns the error of the product alone, and of it added to ones, in one number."""
        alone = 0.0
        if candidate is None:
            poison(out)
            octofold.grouped_gemm(a, b, groups, out=out)
            alone = reference.error(out)
        return math.hypot(alone, error_of_sum(calls[0], out, reference))

    return Implementation(calls, error, ERROR_LIMITS[out.dtype])


def error_of_sum(call: Callable[[], object], sums: Tensor, reference: Reference) -> float:
    """The error of what is added to ones."""
    sums.fill_(1)
    call()
    error = reference.error(sums, 1.0)
    sums.fill_(0)
    return error


def compact(data: Tensor, offsets: Offsets, order: Literal["rows", "groups"]) -> Tensor:
    """Groups without columns between them: as one matrix, or each as a matrix of its own."""
    pieces = [data.view(torch.uint8)[:, first:last] for first, last, _ in places_of(offsets)]
    if order == "rows":
        return torch.cat(pieces, dim=1).view(FP8)
    return torch.cat([piece.reshape(-1) for piece in pieces]).view(FP8)


def rows_of(s: Operands, offsets: Offsets) -> tuple[Tensor, Tensor]:
    return compact(s.a, offsets, "rows"), compact(s.b, offsets, "rows")


def by_deepgemm(sets: Sequence[Operands], offsets: Offsets) -> Implementation:
    """1x128 · 1x128 into FP32 sums; sizes are known to the host too."""
    function = deep_gemm().k_grouped_fp8_gemm_nt_contiguous
    sizes = [end - begin for begin, end in itertools.pairwise(offsets)]
    layout = on_device(sizes, sets[0].a.device)
    calls, references = [], []
    for s in sets:
        wholes = [with_scales(data, "1x128") for data in rows_of(s, offsets)]
        sides = [
            (compact(data, offsets, "groups"), whole.scale)
            for data, whole in zip((s.a, s.b), wholes, strict=True)
        ]
        calls.append(partial(function, *sides, s.out, sizes, layout, c=s.out))
        if not references:
            references.append(Reference(*wholes, list(itertools.pairwise(offsets))))
    return Implementation(calls, lambda: error_of_sum(calls[0], sets[0].out, references[0]))


def by_rowwise(sets: Sequence[Operands], offsets: Offsets) -> Implementation:
    """Into new BF16, nothing added."""
    device = sets[0].a.device
    options = {"offs": on_device(offsets[1:], device), "out_dtype": torch.bfloat16}
    calls = []
    for s in sets:
        a, b = rows_of(s, offsets)
        scales = (torch.ones((len(offsets) - 1) * len(x), device=device) for x in (a, b))
        product = partial(torch._scaled_grouped_mm, a, b.t(), *scales)
        calls.append(partial(product, use_fast_accum=True, **options))
    one = torch.ones(1, device=device)
    flat = [ScaledTensor(data, one, "tensor") for data in rows_of(sets[0], offsets)]
    reference = Reference(*flat, list(itertools.pairwise(offsets)))
    return Implementation(calls, lambda: reference.error(calls[0]()))


def by_bfloat16(sets: Sequence[Operands], offsets: Offsets) -> Implementation:
    """The product that autograd has: dYᵀ · X of rows sorted by group, into new BF16."""
    ends = on_device(offsets[1:], sets[0].a.device)
    wide = [[x.to(torch.bfloat16).t().contiguous() for x in rows_of(s, offsets)] for s in sets]
    calls = [partial(grouped_mm, a.t(), b, ends) for a, b in wide]
    a, b = (side.t() for side in wide[0])
    reference = Reference(a, b, list(itertools.pairwise(offsets)))
    return Implementation(calls, lambda: reference.error(calls[0]()))
