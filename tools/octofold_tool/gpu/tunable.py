"""The products that `octofold tune` measures: of each kind its problem, its call by a candidate,
and how far its result is from FP64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import octofold
import torch
from octofold import Depth, Format, Masked, Rows, ScaledTensor, tuning
from octofold._timing import Call
from octofold.tuning import Problem, ProductProblem, WeightOnlyProblem
from torch import Tensor

from ..gemm_options import Shape
from ..products import GemmOptions
from .measuring import (
    CHECKED_ROWS,
    OUT_DTYPES,
    Product,
    bytes_of,
    error_of,
    float64_rows,
    limit_of,
    poison,
    relative_error,
    tensors_of,
)
from .peers import quantized

# Its result is cast to FP8 of 4 significant bits.
GATED_ERROR_LIMIT = 5e-2


@dataclass(frozen=True)
class Case:
    """A product with its arrays."""

    call: Callable[[str], Any]
    """By the candidate of a name."""
    error: Callable[[Call], float]
    """Relative, of what this call writes; NaN if anything was not written."""
    limit: float
    arrays: tuple[Tensor, ...]

    def bytes(self) -> int:
        """Bytes that have to move through memory at least."""
        return bytes_of(*self.arrays)

    def by(self, name: str) -> Call:
        return partial(self.call, name)


@dataclass(frozen=True)
class Kind:
    """problem: of a shape, options and a number of groups. prepare: its case, on a device."""

    problem: Callable[[Shape, GemmOptions, int], Problem]
    prepare: Callable[[Shape, GemmOptions, int, torch.device], Case]


def _formats(options: GemmOptions) -> tuple[Format, Format]:
    a, b = map(Format, options.dtypes, options.granularities)
    return a, b


def _nothing() -> None:
    """Until it is known by which candidate."""


def _part(a: ScaledTensor | Tensor, b: ScaledTensor, out: Tensor) -> Product:
    return Product(_nothing, a, b, out)


def _case(
    call: Callable[[str], Any],
    parts: Sequence[Product],
    arrays: tuple[Tensor, ...],
    options: GemmOptions,
) -> Case:
    """Returns the case of a result that consists of these dense products."""

    def error(run: Call) -> float:
        return max(error_of(replace(part, run=run)) for part in parts)

    return Case(call, error, limit_of(options, *parts), arrays)


def _empty(options: GemmOptions, device: torch.device, *shape: int) -> Tensor:
    return torch.empty(*shape, dtype=OUT_DTYPES[options.out_dtype], device=device)


def _problem(shape: Shape, options: GemmOptions, groups: int = 1, **fields: Any) -> ProductProblem:
    return ProductProblem(
        *shape,
        *options.dtypes,
        options.out_dtype,
        *options.granularities,
        groups=groups,
        fast_accumulation=options.fast_accumulation,
        batch_invariant=octofold.is_batch_invariant(),  # by the environment: of all calls
        **fields,
    )


def _cast_problem(shape: Shape, options: GemmOptions, groups: int) -> ProductProblem:
    problem = _problem(shape, options, cast_from="bfloat16")
    return replace(problem, a="e4m3", a_granularity="1x128")


def _depth_problem(shape: Shape, options: GemmOptions, groups: int) -> ProductProblem:
    depth = 128 * (shape[2] // 128 + groups)
    return _problem((*shape[:2], depth), options, groups, grouping="depth")


def _gated_problem(shape: Shape, options: GemmOptions, groups: int) -> ProductProblem:
    grouping = None if groups == 1 else "rows"
    problem = _problem(shape, options, groups, gated="swiglu", grouping=grouping)
    return replace(problem, out="e4m3", a_granularity="1x128", b_granularity="128x128")


def _weight_only_problem(shape: Shape, options: GemmOptions, groups: int) -> WeightOnlyProblem:
    return WeightOnlyProblem(
        *shape,
        w=options.dtypes[1],
        w_granularity=options.granularities[1],
        batch_invariant=octofold.is_batch_invariant(),
    )


def _gemm(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    a, b = quantized(x, w, options.dtypes, options.granularities)
    out, fast = _empty(options, device, m, n), options.fast_accumulation
    call = partial(tuning.gemm, a, b, fast_accumulation=fast, out=out)
    return _case(call, (_part(a, b, out),), tensors_of(a, b, out), options)


def _cast(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    x = torch.randn(m, k, device=device).bfloat16()
    a, b = quantized(x, torch.randn(n, k, device=device), ("e4m3", options.dtypes[1]),
                     ("1x128", options.granularities[1]))  # fmt: skip
    out = _empty(options, device, m, n)
    call = partial(tuning.gemm, x, b, out=out)
    return _case(call, (_part(a, b, out),), tensors_of(x, b, out), options)


def _stacked(shape: tuple[int, int, int], options: GemmOptions, device: torch.device) -> Any:
    """b [G, N, K], and the matrix of each group."""
    groups, n, k = shape
    w = torch.randn(groups, n, k, device=device)
    format = _formats(options)[1]
    b = octofold.quantize(w, format, matrices=groups)
    return b, [octofold.quantize(each, format) for each in w]


def _rows(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    a = octofold.quantize(torch.randn(m, k, device=device), _formats(options)[0])
    b, each = _stacked((groups, n, k), options, device)
    bounds = [g * m // groups for g in range(groups + 1)]
    rows = Rows(torch.tensor(bounds, dtype=torch.int32, device=device))
    out, fast = _empty(options, device, m, n), options.fast_accumulation
    call = partial(tuning.grouped_gemm, a, b, rows, fast_accumulation=fast, out=out)
    parts = tuple(
        _part(a[begin:end], each[g], out[begin:end])
        for g, (begin, end) in enumerate(pairwise(bounds))
        if begin < end
    )
    return _case(call, parts, tensors_of(a, b, out), options)


def _masked(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    x = torch.randn(groups, m, k, device=device)
    a = octofold.quantize(x, _formats(options)[0], matrices=groups)
    b, each = _stacked((groups, n, k), options, device)
    counts = Masked(torch.full((groups,), m, dtype=torch.int32, device=device))
    out, fast = _empty(options, device, groups, m, n), options.fast_accumulation
    call = partial(tuning.grouped_gemm, a, b, counts, fast_accumulation=fast, out=out)
    parts = tuple(_part(a[g], each[g], out[g]) for g in range(groups))
    return _case(call, parts, tensors_of(a, b, out), options)


def _depth(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    """K rows were cast, in equal groups of whole blocks of 128."""
    m, n, k = shape
    each = k // groups // 128 * 128
    columns = 128 * (k // 128 + groups)
    a, b = quantized(
        torch.randn(m, columns, device=device), torch.randn(n, columns, device=device),
        options.dtypes, options.granularities,
    )  # fmt: skip
    offsets = Depth(torch.arange(groups + 1, dtype=torch.int32, device=device) * each)
    out, fast = _empty(options, device, groups, m, n), options.fast_accumulation
    call = partial(tuning.grouped_gemm, a, b, offsets, fast_accumulation=fast, out=out)

    def columns_of(x: ScaledTensor, first: int) -> ScaledTensor:
        scale = x.scale
        if x.granularity in ("1x128", "128x128"):
            scale = scale[:, first // 128 : (first + each) // 128]
        return ScaledTensor(x.data[:, first : first + each], scale, x.granularity)

    firsts = [128 * (g * each // 128 + g) for g in range(groups)]
    parts = tuple(
        _part(columns_of(a, first), columns_of(b, first), out[g]) for g, first in enumerate(firsts)
    )
    return _case(call, parts, tensors_of(a, b, out), options)


def _gated(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    a = octofold.quantize(torch.randn(m, k, device=device), Format(options.dtypes[0]))
    bounds = torch.arange(groups + 1, device=device) * m // groups
    rows = None if groups == 1 else Rows(bounds.int())
    w = torch.randn(*(() if rows is None else (groups,)), 2 * n, k, device=device) / k**0.5
    matrices = None if rows is None else groups
    b = octofold.quantize(w, Format(options.dtypes[1], "128x128"), matrices=matrices)
    out = octofold.ops.gated_gemm(a, b, rows)
    checked = min(m // groups, CHECKED_ROWS)  # rows, of the first group
    first = float64_rows(b, torch.arange(2 * n, device=device)) if rows is None else None
    if first is None:
        first = octofold.ScaledTensor(b.data[0], b.scale[0], "128x128").dequantize("float32")
    both = float64_rows(a, torch.arange(checked, device=device)) @ first.double().T
    gate, up = both[:, :n], both[:, n:]
    expected = torch.nn.functional.silu(gate) * up
    call = partial(tuning.gated_gemm, a, b, rows, out=out)

    def error(run: Call) -> float:
        poison(out)
        run()
        actual = float64_rows(out, torch.arange(checked, device=device))
        return relative_error(actual, expected)

    return Case(call, error, GATED_ERROR_LIMIT, tensors_of(a, b, out))


def _weight_only(shape: Shape, options: GemmOptions, groups: int, device: torch.device) -> Case:
    m, n, k = shape
    x = torch.randn(m, k, device=device).bfloat16()
    w = octofold.quantize(torch.randn(n, k, device=device), _formats(options)[1])
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    call = partial(tuning.gemm_weight_only, x, w, out=out)
    return _case(call, (_part(x, w, out),), tensors_of(x, w, out), options)


KINDS: Final[dict[str, Kind]] = {
    "gemm": Kind(_problem, _gemm),
    "cast": Kind(_cast_problem, _cast),
    "rows": Kind(partial(_problem, grouping="rows"), _rows),
    "masked": Kind(partial(_problem, grouping="masked"), _masked),
    "depth": Kind(_depth_problem, _depth),
    "gated": Kind(_gated_problem, _gated),
    "weight-only": Kind(_weight_only_problem, _weight_only),
}
"""By the words of `octofold tune --product`."""
