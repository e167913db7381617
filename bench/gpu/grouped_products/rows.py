"""Products of groups of rows: contiguous ones, masked ones, gated ones."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import octofold
import torch
from common import candidates
from common.measure import ERROR_LIMITS, Implementation
from common.operands import cast_activated, poison, relative_error, sets_of
from common.run import Run
from octofold import Masked, Rows, ScaledTensor
from torch import Tensor

from . import peers
from .cases import OURS, Case, Variant, aligned, around, offsets_of, on_device, zipf
from .reference import RowsReference

PAIR = ("1x128", "128x128")  # what DeepGEMM has

Pair: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Operands:
    """x [rows, K] and w [G, N, K] in BF16, their casts, and those as the products take them."""

    x: Tensor
    w: Tensor
    a: ScaledTensor  # [rows, K]
    flat_b: ScaledTensor  # [G · N, K]
    b: ScaledTensor  # [G, N, K]
    out: Tensor  # [rows, N]


def operands(rows: int, groups: int, n: int, k: int, pair: Pair, device: Any) -> Operands:
    x = torch.randn(rows, k, dtype=torch.bfloat16, device=device)
    w = torch.randn(groups, n, k, dtype=torch.bfloat16, device=device)
    a = octofold.quantize(x, pair[0])
    flat = octofold.quantize(w.view(groups * n, k), pair[1])
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=device)
    return Operands(x, w, a, flat, grouped(flat, groups), out)


def grouped(flat: ScaledTensor, groups: int) -> ScaledTensor:
    """[G · N, K] as [G, N, K], with the scales of each group."""
    data = flat.data.unflatten(0, (groups, -1))
    scale = flat.scale
    if flat.granularity != "tensor":
        scale = scale.unflatten(0, (groups, -1))
    return ScaledTensor(data, scale, flat.granularity)


def bytes_of(rows: int, groups: int, n: int, k: int) -> int:
    """Bytes that have to move at least: codes, scales of 1x128 · 128x128, a BF16 result."""
    scales = 4 * (rows * k // 128 + groups * n * k // 128**2)
    return rows * k + groups * n * k + scales + 2 * rows * n


def row_ranges(sizes: Sequence[int]) -> list[range]:
    return [range(*pair) for pair in itertools.pairwise(offsets_of(sizes))]


def contiguous(case: Case, pair: Pair, exponent: float, run: Run) -> Iterator[Variant]:
    """Ours and the peers at aligned sizes, at aligned ones of 0.7 to 1.3 of the mean, and at
    Zipf's, all of the same rows."""
    n, k = case.sizes
    make = partial(operands, case.rows, case.groups, n, k, pair, run.device)
    sets = sets_of(make, bytes_of(case.rows, case.groups, n, k), run)
    spread = zipf(case.rows, case.groups, exponent)
    uneven = around(case, peers.ALIGNMENT)
    for sizes, suffix in ((aligned(case), ""), (uneven, ", uneven"), (spread, ", zipf")):
        yield Variant(OURS + suffix, partial(ours, sets, sizes), pair)
        yield from peers_of(sets, sizes, suffix)


def peers_of(sets: Sequence[Operands], sizes: Sequence[int], suffix: str = "") -> Iterator[Variant]:
    builders = {peers.ROWWISE: rowwise, peers.BFLOAT16: bfloat16}
    if (sets[0].a.granularity, sets[0].b.granularity) == PAIR:
        builders = {peers.DEEPGEMM: deepgemm} | builders
    for peer, builder in builders.items():
        yield Variant(peer + suffix, partial(builder, sets, sizes))


def ours(
    sets: Sequence[Operands], sizes: Sequence[int], candidate: str | None = None
) -> Implementation:
    first = sets[0]
    offsets = on_device(offsets_of(sizes), first.x.device)
    calls = [candidates.grouped_gemm(s.a, s.b, Rows(offsets), s.out, candidate) for s in sets]
    reference = RowsReference(first.a, first.flat_b, row_ranges(sizes))

    def error() -> float:
        first.out.fill_(torch.nan)
        calls[0]()
        return reference.error(first.out)

    return Implementation(calls, error, ERROR_LIMITS[first.out.dtype])


def deepgemm(sets: Sequence[Operands], sizes: Sequence[int]) -> Implementation:
    layout = peers.DeepGemmContiguous(sizes, sets[0].x.device)
    products = [layout.call(s.a, s.b, s.out) for s in sets]
    reference = RowsReference(sets[0].a, sets[0].flat_b, row_ranges(sizes))
    return implementation(products, reference)


def rowwise(sets: Sequence[Operands], sizes: Sequence[int]) -> Implementation:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    built = [peers.rowwise(s.x, s.w, ends) for s in sets]
    reference = RowsReference(built[0][1], built[0][2], row_ranges(sizes))
    return implementation([product for product, _, _ in built], reference)


def bfloat16(sets: Sequence[Operands], sizes: Sequence[int]) -> Implementation:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    products = [peers.bfloat16(s.x, s.w, ends) for s in sets]
    reference = RowsReference(sets[0].x, sets[0].w.flatten(0, 1), row_ranges(sizes))
    return implementation(products, reference)


def implementation(products: list[peers.Product], reference: RowsReference) -> Implementation:
    runs = [product.run for product in products]
    return Implementation(runs, lambda: reference.error(products[0].result()))


def decode(case: Case, pair: Pair, run: Run) -> Iterator[Variant]:
    """Few rows a group: contiguous for us and torch, masked for us and DeepGEMM, which else
    pads each group to 128 rows."""
    n, k = case.sizes
    make = partial(operands, case.rows, case.groups, n, k, pair, run.device)
    sets = sets_of(make, bytes_of(case.rows, case.groups, n, k), run)
    sizes = aligned(case)
    yield Variant(OURS, partial(ours, sets, sizes), pair)
    yield Variant(f"{OURS}, zipf", partial(ours, sets, zipf(case.rows, case.groups)), pair)
    yield from masked(case, pair, max(64, case.each), run, ", masked")
    yield from peers_of(sets, sizes)


def masked(case: Case, pair: Pair, most: int, run: Run, suffix: str = "") -> Iterator[Variant]:
    """Groups of `most` rows, of which the first are valid: equally many, and 0.7 to 1.3 of that."""
    n, k = case.sizes
    uneven = around(case, 1)
    most = max(most, *uneven)
    make = partial(operands, case.groups * most, case.groups, n, k, pair, run.device)
    sets = sets_of(make, bytes_of(case.rows, case.groups, n, k), run)
    for sizes, name in ((aligned(case), suffix), (uneven, f"{suffix}, uneven")):
        yield from masked_rows(case, pair, sets, sizes, most, name, run)


def masked_rows(
    case: Case,
    pair: Pair,
    sets: Sequence[Operands],
    sizes: Sequence[int],
    most: int,
    suffix: str,
    run: Run,
) -> Iterator[Variant]:
    """Scales lie as DeepGEMM has them, M-major in each group."""
    counts = on_device(sizes, run.device)
    valid = [range(g * most, g * most + size) for g, size in enumerate(sizes)]
    first = sets[0]
    reference = RowsReference(first.a, first.flat_b, valid)

    def three(flat: ScaledTensor) -> ScaledTensor:
        """A cast [G · rows, K] as [G, rows, K]."""
        of_groups = grouped(flat, case.groups)
        if pair[0] != "1x128":
            return of_groups
        scale = peers.column_major(of_groups.scale)
        return ScaledTensor(of_groups.data, scale, pair[0])

    def by_us(candidate: str | None = None) -> Implementation:
        calls = []
        for s in sets:
            out = s.out.unflatten(0, (case.groups, -1))
            groups = Masked(counts, case.each)
            calls.append(candidates.grouped_gemm(three(s.a), s.b, groups, out, candidate))

        def error() -> float:
            first.out.fill_(torch.nan)
            calls[0]()
            for rows, size in zip(first.out.unflatten(0, (case.groups, -1)), sizes, strict=True):
                assert torch.isnan(rows[size:]).all(), "rows beyond the counts were written"
            return reference.error(first.out)

        return Implementation(calls, error, ERROR_LIMITS[first.out.dtype])

    def by_deepgemm() -> Implementation:
        products = []
        for s in sets:
            out = s.out.unflatten(0, (case.groups, -1))
            a = grouped(s.a, case.groups)
            products.append(peers.deepgemm_masked(a, s.b, counts, case.each, out))

        def error() -> float:
            return reference.error(products[0].result().flatten(0, 1))

        return Implementation([product.run for product in products], error)

    yield Variant(OURS + suffix, by_us, pair)
    if pair == PAIR:
        yield Variant(peers.DEEPGEMM + suffix, by_deepgemm)


def gated(case: Case, activation: str, exponent: float, run: Run) -> Iterator[Variant]:
    """The first product of an expert with its activation and cast, at aligned sizes and Zipf's,
    beside both one after another."""
    n, k = case.sizes
    make = partial(operands, case.rows, case.groups, 2 * n, k, PAIR, run.device)
    sets = sets_of(make, gated_bytes(case), run)
    codes = [cast_activated(s.out, activation) for s in sets]  # memory for them

    def fused(offsets: Tensor, candidate: str | None = None) -> Implementation:
        calls = [
            candidates.gated_gemm(s.a, s.b, activation, out, candidate, offsets)
            for s, out in zip(sets, codes, strict=True)
        ]

        def error() -> float:
            """The error of dequantized results, against the two operations one after another."""
            poison(codes[0].data)
            calls[0]()
            return relative_error(codes[0].dequantize(), apart(offsets, sets[0]).dequantize())

        # The BF16 between the two is rounded, and codes near a tie move.
        return Implementation(calls, error, 3e-2)

    def alone(offsets: Tensor, s: Operands) -> Tensor:
        return octofold.grouped_gemm(s.a, s.b, Rows(offsets), out=s.out)

    def apart(offsets: Tensor, s: Operands) -> ScaledTensor:
        return cast_activated(alone(offsets, s), activation)

    def unchecked(function: Any, offsets: Tensor) -> Implementation:
        """The other sections check the product."""
        return Implementation([partial(function, offsets, s) for s in sets], lambda: 0.0)

    sizes = {"": aligned(case), ", zipf": zipf(case.rows, case.groups, exponent)}
    for suffix, rows in sizes.items():
        offsets = on_device(offsets_of(rows), run.device)
        yield Variant(OURS + suffix, partial(fused, offsets), PAIR)
        yield Variant(f"gemm + cast{suffix}", partial(unchecked, apart, offsets))
        yield Variant(f"gemm alone{suffix}", partial(unchecked, alone, offsets))


def gated_bytes(case: Case) -> int:
    """A byte for each element of the result."""
    n, k = case.sizes
    return bytes_of(case.rows, case.groups, 2 * n, k) - 3 * case.rows * n
