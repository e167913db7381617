"""Products of groups of rows: contiguous ones, masked ones, gated ones."""

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold
import torch
from octofold import Masked, Rows, ScaledTensor, tuning
from octofold._timing import Call
from octofold_tool.gpu.measuring import (
    Implementation,
    Operand,
    float64_rows,
    poison,
    relative_error,
)
from torch import Tensor

from common.groups import BFLOAT16, DEEPGEMM, OURS, ROWWISE, Case, offsets_of, on_device
from common.measure import ERROR_LIMITS, Build
from common.operands import calls_of, cast_activated, normal, sets_of
from common.run import Run

PAIR = ("1x128", "128x128")  # what DeepGEMM has
ALIGNMENT = 128  # of the rows of DeepGEMM's groups
MASKED_ROWS = 1024  # of each group, valid or not
COMPARED = 256  # columns
SWIGLU_LIMIT = 3e-2  # the BF16 between the two is rounded, and codes near a tie move

Sizes = Sequence[int]


@dataclass(frozen=True)
class Operands:
    """x [rows, K] and w [G, N, K] in BF16, their casts, and those as the products take them."""

    x: Tensor
    w: Tensor
    a: ScaledTensor  # [rows, K]
    flat_b: ScaledTensor  # [G · N, K]
    b: ScaledTensor  # [G, N, K]
    out: Tensor  # [rows, N]

    def out_of_groups(self) -> Tensor:
        """[G, rows, N]"""
        return self.out.unflatten(0, (len(self.w), -1))


def operands(run: Run, rows: int, groups: int, n: int, k: int, pair: Sequence[str]) -> Operands:
    x, w = normal(run, rows, k), normal(run, groups, n, k)
    a = octofold.quantize(x, pair[0])
    flat = octofold.quantize(w.view(groups * n, k), pair[1])
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=run.device)
    return Operands(x, w, a, flat, grouped(flat, groups), out)


def grouped(flat: ScaledTensor, groups: int) -> ScaledTensor:
    """[G · N, K] as [G, N, K], with the scales of each group."""
    scale = flat.scale
    if flat.granularity != "tensor":
        scale = scale.unflatten(0, (groups, -1))
    return ScaledTensor(flat.data.unflatten(0, (groups, -1)), scale, flat.granularity)


def bytes_of(rows: int, groups: int, n: int, k: int) -> int:
    """Bytes that have to move at least: codes, scales of 1x128 · 128x128, a BF16 result."""
    scales = 4 * (rows * k // 128 + groups * n * k // 128**2)
    return rows * k + groups * n * k + scales + 2 * rows * n


class Reference:
    """Elements of the products in FP64: of each group its first and last rows, and two between."""

    def __init__(self, a: Operand, b: Operand, rows_of: Sequence[range]) -> None:
        """a [rows, K], b [G · N, K]: of all groups, without leading dimensions. rows_of: of each
        group the rows of `a` that are its own."""
        self._a, self._b, self._rows_of = a, b, rows_of
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def error(self, out: Tensor) -> float:
        """Returns the error of out [rows, N], all of whose valid rows must be finite."""
        for rows in self._rows_of:
            if rows and not torch.isfinite(out[rows.start : rows.stop]).all():
                return float("nan")
        if not self._parts:
            self._parts = list(self._expected(out.shape[1], out.device))
        wrong = total = 0.0
        for some, columns, expected in self._parts:
            wrong += float((out[some][:, columns].double() - expected).square().sum())
            total += float(expected.square().sum())
        return float((wrong / total) ** 0.5) if total else 0.0

    def _expected(self, n: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, columns, and what stands there."""
        for group, rows in enumerate(self._rows_of):
            if not rows:
                continue
            places = {rows[0], rows[-1], rows[len(rows) // 2], rows[len(rows) // 3]}
            some = torch.tensor(sorted(places), device=device)
            columns = torch.randperm(n, device=device)[:COMPARED]
            expected = float64_rows(self._a, some) @ float64_rows(self._b, group * n + columns).T
            yield some, columns, expected


def reference_of(a: Operand, b: Operand, sizes: Sizes) -> Reference:
    return Reference(a, b, [range(*pair) for pair in itertools.pairwise(offsets_of(sizes))])


def written(
    calls: Sequence[Call],
    out: Tensor,
    reference: Reference,
    valid: Callable[[Tensor], Tensor] = lambda out: out,
    **limits: float,
) -> Implementation:
    """valid: takes from what is written the rows that the reference knows."""

    def error() -> float:
        poison(out)
        calls[0]()
        return reference.error(valid(out))

    return Implementation(calls, error, **limits)


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """BF16 product of torch, by whichever name this release has."""
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return public(a, b, offs=ends) if public else torch._grouped_mm(a, b, offs=ends)


def column_major(scale: Tensor) -> Tensor:
    """Rows next to each other, as DeepGEMM takes them without a copy: [..., rows, blocks]."""
    return scale.transpose(-2, -1).contiguous().transpose(-2, -1)


def deep_gemm() -> Any:
    """Raises ImportError where it is not."""
    return importlib.import_module("deep_gemm")


def by_us(sets: Sequence[Operands], sizes: Sizes, candidate: str | None = None) -> Implementation:
    first = sets[0]
    offsets = Rows(on_device(offsets_of(sizes), first.x.device))
    call = tuning.using(candidate)(octofold.grouped_gemm)
    calls = [partial(call, s.a, s.b, offsets, out=s.out) for s in sets]
    reference = reference_of(first.a, first.flat_b, sizes)
    return written(calls, first.out, reference, limit=ERROR_LIMITS[first.out.dtype])


def by_deepgemm(sets: Sequence[Operands], sizes: Sizes) -> Implementation:
    """Takes operands 1x128 · 128x128; groups that are not aligned are padded before."""
    function = deep_gemm().m_grouped_fp8_gemm_nt_contiguous
    device = sets[0].x.device
    whole = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    begins = offsets_of(whole)
    rows = [begin + row for begin, size in zip(begins, sizes, strict=False) for row in range(size)]
    places = torch.tensor(rows, device=device)
    # Each padded row's group, -1 where there is none.
    group_of = torch.full((begins[-1],), -1, dtype=torch.int32, device=device)
    group_of[places] = torch.arange(len(sizes), dtype=torch.int32, device=device).repeat_interleave(
        torch.tensor(sizes, device=device)
    )
    padded = len(places) != len(group_of)

    def at_places(x: Tensor, rows_before: Tensor) -> Tensor:
        x[places] = rows_before
        return x

    calls, outs = [], []
    for s in sets:
        codes, scale, out = s.a.data, s.a.scale, s.out
        if padded:
            shape = len(group_of), codes.shape[1]
            bytes_ = torch.zeros(shape, dtype=torch.uint8, device=device)
            codes = at_places(bytes_, codes.view(torch.uint8)).view(codes.dtype)
            scale = at_places(torch.zeros(len(group_of), scale.shape[1], device=device), scale)
            out = out.new_empty(len(group_of), out.shape[1])
        left, right = (codes, column_major(scale)), (s.b.data, s.b.scale.contiguous())
        calls.append(partial(function, left, right, out, group_of))
        outs.append(out)
    reference = reference_of(sets[0].a, sets[0].flat_b, sizes)
    return written(calls, outs[0], reference, lambda out: out[places])


def by_rowwise(sets: Sequence[Operands], sizes: Sizes) -> Implementation:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    options = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    casts = [(octofold.quantize(s.x, "channel"), octofold.quantize(s.w.flatten(0, 1), "channel"))
             for s in sets]  # fmt: skip
    calls = [
        partial(
            torch._scaled_grouped_mm,
            a.data,
            b.data.view(s.w.shape).transpose(-2, -1),
            a.scale.view(-1),
            b.scale.view(s.w.shape[:2]),
            **options,
        )
        for (a, b), s in zip(casts, sets, strict=True)
    ]
    reference = reference_of(*casts[0], sizes)
    return Implementation(calls, lambda: reference.error(calls[0]()))


def by_bfloat16(sets: Sequence[Operands], sizes: Sizes) -> Implementation:
    ends = on_device(offsets_of(sizes)[1:], sets[0].x.device)
    calls = calls_of(grouped_mm, [(s.x, s.w.transpose(-2, -1), ends) for s in sets])
    reference = reference_of(sets[0].x, sets[0].w.flatten(0, 1), sizes)
    return Implementation(calls, lambda: reference.error(calls[0]()))


def build_of(run: Run, case: Case) -> Callable[..., Build]:
    """Makes the builds, with bytes, operations and candidates."""
    size = partial(bytes_of, case.rows, case.groups)
    n, k = case.sizes
    gated = case.section == "gated"
    bytes_ = size(2 * n, k) - 3 * case.rows * n if gated else size(n, k)  # a byte of each result
    operation = "gated_gemm" if gated else "grouped_gemm"
    of = "masked rows" if case.section == "masked" else "rows"
    a, b = PAIR if gated else run.options.pair
    names = tuning.candidates(
        f"{operation}: m 128, n {n}, k {k}, a e4m3 {a}, b e4m3 {b}, groups {case.groups} of {of}"
    )

    def build(name: str, make: Callable[..., Implementation], ours: bool = False) -> Build:
        return Build(name, make, ours, bytes_, case.operations, names if ours else ())

    return build


def sets_of_case(run: Run, case: Case, rows: int | None = None) -> list[Operands]:
    n, k = case.sizes
    make = partial(operands, run, rows or case.rows, case.groups, n, k, run.options.pair)
    return sets_of(make, bytes_of(case.rows, case.groups, n, k), run)


def peers(
    build: Callable[..., Build], sets: Sequence[Operands], sizes: Sizes, suffix: str
) -> Iterator[Build]:
    makes = {ROWWISE: by_rowwise, BFLOAT16: by_bfloat16}
    if (sets[0].a.granularity, sets[0].b.granularity) == PAIR:
        makes = {DEEPGEMM: by_deepgemm} | makes
    for peer, make in makes.items():
        yield build(peer + suffix, partial(make, sets, sizes))


def contiguous(run: Run, case: Case) -> Iterator[Build]:
    """Ours and the peers at aligned sizes, at aligned ones of 0.7 to 1.3 of the mean, and at
    Zipf's, all of the same rows."""
    build, sets = build_of(run, case), sets_of_case(run, case)
    uneven, spread = case.around(ALIGNMENT), case.zipf(run.options.zipf)
    for sizes, suffix in ((case.aligned, ""), (uneven, ", uneven"), (spread, ", zipf")):
        yield build(OURS + suffix, partial(by_us, sets, sizes), True)
        yield from peers(build, sets, sizes, suffix)


def masked(run: Run, case: Case) -> Iterator[Build]:
    """Groups of MASKED_ROWS or more, of which the first are valid: equally many, and 0.7 to 1.3 of
    that."""
    build, uneven = build_of(run, case), case.around(1)
    most = max(MASKED_ROWS, case.each, *uneven)
    sets = sets_of_case(run, case, case.groups * most)
    for sizes, name in ((case.aligned, ""), (uneven, ", uneven")):
        yield build(OURS + name, partial(masked_by_us, sets, sizes, case.each), True)
        if (sets[0].a.granularity, sets[0].b.granularity) == PAIR:
            yield build(DEEPGEMM + name, partial(masked_by_deepgemm, sets, sizes, case.each))


def masked_reference(s: Operands, sizes: Sizes) -> Reference:
    most = len(s.x) // len(sizes)
    return Reference(s.a, s.flat_b, [range(g * most, g * most + n) for g, n in enumerate(sizes)])


def masked_by_us(
    sets: Sequence[Operands], sizes: Sizes, expected: int, candidate: str | None = None
) -> Implementation:
    """Scales lie as DeepGEMM has them, M-major in each group."""
    first = sets[0]
    counts = Masked(on_device(sizes, first.x.device), expected)
    calls = []
    for s in sets:
        a = grouped(s.a, len(sizes))
        if a.granularity == "1x128":
            a = ScaledTensor(a.data, column_major(a.scale), a.granularity)
        call = tuning.using(candidate)(octofold.grouped_gemm)
        calls.append(partial(call, a, s.b, counts, out=s.out_of_groups()))

    def untouched(out: Tensor) -> Tensor:
        for rows, size in zip(first.out_of_groups(), sizes, strict=True):
            assert torch.isnan(rows[size:]).all(), "rows beyond the counts were written"
        return out

    reference = masked_reference(first, sizes)
    return written(calls, first.out, reference, untouched, limit=ERROR_LIMITS[first.out.dtype])


def masked_by_deepgemm(sets: Sequence[Operands], sizes: Sizes, expected: int) -> Implementation:
    function = deep_gemm().m_grouped_fp8_gemm_nt_masked
    counts = on_device(sizes, sets[0].x.device)
    calls = []
    for s in sets:
        a = grouped(s.a, len(sizes))
        left, right = (a.data, column_major(a.scale)), (s.b.data, s.b.scale.contiguous())
        calls.append(partial(function, left, right, s.out_of_groups(), counts, expected))
    return written(calls, sets[0].out, masked_reference(sets[0], sizes))


def gated(run: Run, case: Case) -> Iterator[Build]:
    """The first product of an expert with its activation and cast, at aligned sizes and Zipf's,
    beside both one after another."""
    n, k = case.sizes
    build, activation = build_of(run, case), run.options.activation
    make = partial(operands, run, case.rows, case.groups, 2 * n, k, PAIR)
    sets = sets_of(make, bytes_of(case.rows, case.groups, 2 * n, k), run)
    codes = [cast_activated(s.out, activation) for s in sets]  # memory for them

    def fused(offsets: Tensor, candidate: str | None = None) -> Implementation:
        call = partial(tuning.using(candidate)(octofold.ops.gated_gemm), activation=activation)
        calls = [
            partial(call, s.a, s.b, Rows(offsets), out=out)
            for s, out in zip(sets, codes, strict=True)
        ]

        def error() -> float:
            """The error of dequantized results, against the two operations one after another."""
            poison(codes[0].data)
            calls[0]()
            return relative_error(codes[0].dequantize(), apart(offsets, sets[0]).dequantize())

        return Implementation(calls, error, SWIGLU_LIMIT)

    def alone(offsets: Tensor, s: Operands) -> Tensor:
        return octofold.grouped_gemm(s.a, s.b, Rows(offsets), out=s.out)

    def apart(offsets: Tensor, s: Operands) -> ScaledTensor:
        return cast_activated(alone(offsets, s), activation)

    def whole(function: Any, offsets: Tensor, sizes: Sizes) -> Implementation:
        """By the product, which the cast takes."""
        calls = [partial(function, offsets, s) for s in sets]
        first = sets[0]
        reference = reference_of(first.a, first.flat_b, sizes)
        return written(calls, first.out, reference, limit=ERROR_LIMITS[first.out.dtype])

    spread = case.zipf(run.options.zipf)
    for sizes, suffix in ((case.aligned, ""), (spread, ", zipf")):
        offsets = on_device(offsets_of(sizes), run.device)
        yield build(OURS + suffix, partial(fused, offsets), True)
        yield build(f"gemm + cast{suffix}", partial(whole, apart, offsets, sizes))
        yield build(f"gemm alone{suffix}", partial(whole, alone, offsets, sizes))
