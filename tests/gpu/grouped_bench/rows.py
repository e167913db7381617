"""Products of groups of rows: contiguous ones, masked ones, gated ones."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import octofold
import torch
from octofold import ScaledTensor
from torch import Tensor

from . import doors, peers
from .cases import Case, aligned, offsets_of, on_device, zipf
from .ways import ERROR_LIMITS, OURS, Build, Reference, Way, sets_of

PAIR = ("1x128", "128x128")  # what DeepGEMM has
NAN_CODE = 0x7F

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
    """What has to move at least: codes, scales of 1x128 · 128x128, a BF16 result."""
    scales = 4 * (rows * k // 128 + groups * n * k // 128**2)
    return rows * k + groups * n * k + scales + 2 * rows * n


def row_ranges(sizes: Sequence[int]) -> list[range]:
    return [range(*pair) for pair in itertools.pairwise(offsets_of(sizes))]


def contiguous(case: Case, pair: Pair, exponent: float, device: Any) -> Iterator[Build]:
    """Ours at aligned sizes and at Zipf's, both of the same rows; then the peers at both."""
    n, k = case.sizes
    count = sets_of(bytes_of(case.rows, case.groups, n, k))
    sets = [operands(case.rows, case.groups, n, k, pair, device) for _ in range(count)]
    spread = zipf(case.rows, case.groups, exponent)
    for sizes, suffix in ((aligned(case), ""), (spread, ", zipf")):
        name = OURS + suffix
        yield Build(name, partial(ours, name, sets, sizes), pair)
        yield from peers_of(sets, sizes, suffix)


def peers_of(sets: Sequence[Operands], sizes: Sequence[int], suffix: str = "") -> Iterator[Build]:
    builders = {peers.ROWWISE: rowwise, peers.BFLOAT16: bfloat16}
    if (sets[0].a.granularity, sets[0].b.granularity) == PAIR:
        builders = {peers.DEEPGEMM: deepgemm} | builders
    for peer, builder in builders.items():
        yield Build(peer + suffix, partial(builder, peer + suffix, sets, sizes))


def ours(
    name: str, sets: Sequence[Operands], sizes: Sequence[int], candidate: str | None = None
) -> Way:
    first = sets[0]
    offsets = on_device(offsets_of(sizes), first.x.device)
    calls = [doors.contiguous(s.a, s.b, offsets, s.out, candidate) for s in sets]
    reference = Reference(first.a, first.flat_b, row_ranges(sizes))

    def error() -> float:
        first.out.fill_(torch.nan)
        calls[0]()
        return reference.error(first.out)

    return Way(name, calls, error, ERROR_LIMITS[first.out.dtype])


def deepgemm(name: str, sets: Sequence[Operands], sizes: Sequence[int]) -> Way:
    layout = peers.DeepGemmContiguous(sizes, sets[0].x.device)
    products = [layout.call(s.a, s.b, s.out) for s in sets]
    reference = Reference(sets[0].a, sets[0].flat_b, row_ranges(sizes))
    return way_of(name, products, reference)


def rowwise(name: str, sets: Sequence[Operands], sizes: Sequence[int]) -> Way:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    built = [peers.rowwise(s.x, s.w, ends) for s in sets]
    reference = Reference(built[0][1], built[0][2], row_ranges(sizes))
    return way_of(name, [product for product, _, _ in built], reference)


def bfloat16(name: str, sets: Sequence[Operands], sizes: Sequence[int]) -> Way:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    products = [peers.bfloat16(s.x, s.w, ends) for s in sets]
    reference = Reference(sets[0].x, sets[0].w.flatten(0, 1), row_ranges(sizes))
    return way_of(name, products, reference)


def way_of(name: str, products: Sequence[peers.Product], reference: Reference) -> Way:
    return Way(
        name,
        [product.run for product in products],
        lambda: reference.error(products[0].result()),
    )


def decode(case: Case, pair: Pair, device: Any) -> Iterator[Build]:
    """Few rows a group: contiguous for us and torch, masked for us and DeepGEMM, which else
    pads each group to 128 rows."""
    n, k = case.sizes
    count = sets_of(bytes_of(case.rows, case.groups, n, k))
    sets = [operands(case.rows, case.groups, n, k, pair, device) for _ in range(count)]
    sizes = aligned(case)
    yield Build(OURS, partial(ours, OURS, sets, sizes), pair)
    name = f"{OURS}, zipf"
    yield Build(name, partial(ours, name, sets, zipf(case.rows, case.groups)), pair)
    yield from masked(case, pair, max(64, case.each), device, ", masked")
    yield from peers_of(sets, sizes)


def masked(case: Case, pair: Pair, most: int, device: Any, suffix: str = "") -> Iterator[Build]:
    """Groups of `most` rows, of which the first are valid."""
    n, k = case.sizes
    count = sets_of(bytes_of(case.rows, case.groups, n, k))
    sets = [operands(case.groups * most, case.groups, n, k, pair, device) for _ in range(count)]
    counts = on_device(aligned(case), torch.device(device))
    valid = [range(g * most, g * most + case.each) for g in range(case.groups)]
    first = sets[0]
    reference = Reference(first.a, first.flat_b, valid)

    def three(flat: ScaledTensor) -> ScaledTensor:
        """A cast [G · rows, K] as [G, rows, K]; its scales remain those of the matrix."""
        return ScaledTensor(flat.data.unflatten(0, (case.groups, -1)), flat.scale, pair[0])

    def by_us(candidate: str | None = None) -> Way:
        calls = []
        for s in sets:
            out = s.out.unflatten(0, (case.groups, -1))
            calls.append(doors.masked(three(s.a), s.b, counts, case.each, out, candidate))

        def error() -> float:
            first.out.fill_(torch.nan)
            calls[0]()
            beyond = first.out.unflatten(0, (case.groups, -1))[:, case.each :]
            assert torch.isnan(beyond).all(), "rows beyond the counts were written"
            return reference.error(first.out)

        return Way(OURS + suffix, calls, error, ERROR_LIMITS[first.out.dtype])

    def by_deepgemm() -> Way:
        products = []
        for s in sets:
            out = s.out.unflatten(0, (case.groups, -1))
            a = grouped(s.a, case.groups)
            products.append(peers.deepgemm_masked(a, s.b, counts, case.each, out))

        def error() -> float:
            return reference.error(products[0].result().flatten(0, 1))

        return Way(peers.DEEPGEMM + suffix, [product.run for product in products], error)

    yield Build(OURS + suffix, by_us, pair)
    if pair == PAIR:
        yield Build(peers.DEEPGEMM + suffix, by_deepgemm)


def gated(case: Case, activation: str, exponent: float, device: Any) -> Iterator[Build]:
    """The first product of an expert with its activation and cast, at aligned sizes and Zipf's,
    beside both one after another."""
    n, k = case.sizes
    count = sets_of(bytes_of(case.rows, case.groups, 2 * n, k) - 3 * case.rows * n)
    sets = [operands(case.rows, case.groups, 2 * n, k, PAIR, device) for _ in range(count)]
    offsets_by_name = {
        "": on_device(offsets_of(aligned(case)), torch.device(device)),
        ", zipf": on_device(
            offsets_of(zipf(case.rows, case.groups, exponent)), torch.device(device)
        ),
    }

    codes = [octofold.quantize_activation(s.out, activation) for s in sets]  # memory for them

    def fused(offsets: Tensor, name: str, candidate: str | None = None) -> Way:
        calls = [
            doors.gated(s.a, s.b, offsets, activation, out, candidate)
            for s, out in zip(sets, codes, strict=True)
        ]

        def error() -> float:
            """Of the dequantized results, against the two one after another."""
            codes[0].data.view(torch.uint8).fill_(NAN_CODE)
            got = calls[0]() or codes[0]
            values = [result.dequantize() for result in (got, apart(sets[0], offsets))]
            return float(torch.linalg.norm(values[0] - values[1]) / torch.linalg.norm(values[1]))

        # The BF16 between the two is rounded, and codes near a tie move.
        return Way(name, calls, error, 3e-2)

    def apart(s: Operands, offsets: Tensor) -> ScaledTensor:
        octofold.grouped_gemm(s.a, s.b, offsets, out=s.out)
        return octofold.quantize_activation(s.out, activation)

    def product(offsets: Tensor, name: str, cast: bool) -> Way:
        def call(s: Operands) -> object:
            if cast:
                return apart(s, offsets)
            return octofold.grouped_gemm(s.a, s.b, offsets, out=s.out)

        def error() -> float:
            """Nothing: the other section checks the product."""
            call(sets[0])
            return 0.0

        return Way(name, [partial(call, s) for s in sets], error)

    for suffix, offsets in offsets_by_name.items():
        ours_, cast, alone = (f"{name}{suffix}" for name in (OURS, "gemm + cast", "gemm alone"))
        yield Build(ours_, partial(fused, offsets, ours_), PAIR)
        yield Build(cast, partial(product, offsets, cast, True))
        yield Build(alone, partial(product, offsets, alone, False))
