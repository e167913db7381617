"""Products of groups of 16-bit rows with FP8 weights, and their gradients."""

from collections.abc import Sequence
from typing import Any, Final

from .._core.calls import Op
from .._core.dtypes import HALF, DTypeLike
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options
from .._core.scaled_tensor import ScaledTensor
from .._core.streams import StreamLike
from .cast_sources import Gathered
from .gemm_weight_only import require_weight, result_dtype
from .grouped_gemm import sizes
from .groups import Masked, Rows


def grouped_gemm_weight_only(
    x: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    *,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """A product of each group g of rows with FP8 weights of its own, on GPUs with FP8 units or
    without: the experts of a layer whose activations keep 16 bits.

    | groups                        | result                                                   |
    |-------------------------------|----------------------------------------------------------|
    | Rows(offsets)                 | out[rows of g] = x[rows of g] · w[g]ᵀ (+ bias[g])        |
    | Masked(counts, expected_rows) | out[g, i] = x[g, i] · w[g]ᵀ (+ bias[g]) for the first    |
    |                               | counts[g] rows i                                         |

    x: float16 or bfloat16 (only float16 before compute capability 8.0); columns contiguous, any
        row stride. Rows: [M, K], sorted by group, or Gathered(x, sources), whose rows are read
        where they lie: row i is x[sources[i] // slots], and factors, where there are any, multiply
        its sums in FP32. Masked: [G, rows, K].
    w: [G, N, K], e4m3 or e5m2, as checkpoints have them: nothing is repacked. Scales as those of b
        in grouped_gemm(). Only matrices of groups that have rows are read.
    groups: as in grouped_gemm(): the host does not read their numbers on a GPU.
    bias: [G, N], of the result's dtype or float32, contiguous.
    out_dtype: the dtype of the result: x's dtype or float32; by default that of `out`, else x's.
    out: where to write: [M, N], M being the number of sources where rows are gathered; Masked:
        [G, rows, N]. Rows that belong to no group, or come from nowhere, are not written: those of
        a new array are whatever memory held.
    batch_invariant: as in gemm_weight_only(), whatever the groups are: a row depends on itself and
        on its group's w.
    stream: as in gemm().

    Arithmetic is that of gemm_weight_only(). Returns `out`, or a new array in the framework of x.
    Nothing is differentiated: grouped_gemm_weight_only_gradient() is the gradient by x.
    Raises as grouped_gemm() and gemm_weight_only().
    """
    return multiply_by_groups_of_weights(
        x, w, groups, bias, out_dtype, batch_invariant, out, stream
    )


def multiply_by_groups_of_weights(
    x: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    bias: Array | None,
    out_dtype: DTypeLike | None,
    batch_invariant: bool,
    out: Array | None,
    stream: StreamLike | None,
    candidate: str | None = None,
) -> Array:
    """grouped_gemm_weight_only() by the candidate of a name; None: by the fastest."""
    operation = "grouped_gemm_weight_only"
    inputs, options = _operands(operation, x, w, groups)
    name = result_dtype(operation, "x", inputs[0], HALF, out, out_dtype)
    results = None if out is None else (out,)
    options = (*options, batch_invariant, candidate)
    return _PRODUCT((*inputs, bias), options, name, results, stream)[0]


def grouped_gemm_weight_only_gradient(
    gradient: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    *,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute gradient[rows of g] · w[g], the gradient by x of grouped_gemm_weight_only().

    gradient: as x there, with N columns. Where the results of experts were summed with weights,
        that by the sum, Gathered(gradient, sources, slots=k, factors=weights).
    w, groups: as in grouped_gemm_weight_only().
    out_dtype: the dtype of the result; by default that of `out`, else gradient's.
    out: where to write, [M, K] or [G, rows, K], of gradient's dtype or float32.
    batch_invariant, stream: as in grouped_gemm_weight_only().

    Scales that differ along N ("channel", 1x128) take one more rounding, as in
    gemm_weight_only_gradient(). Returns and raises as grouped_gemm_weight_only().
    """
    return multiply_by_groups_of_rows(gradient, w, groups, out_dtype, batch_invariant, out, stream)


def multiply_by_groups_of_rows(
    gradient: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    out_dtype: DTypeLike | None,
    batch_invariant: bool,
    out: Array | None,
    stream: StreamLike | None,
    candidate: str | None = None,
) -> Array:
    """grouped_gemm_weight_only_gradient() by the candidate of a name; None: by the fastest."""
    operation = "grouped_gemm_weight_only_gradient"
    inputs, options = _operands(operation, gradient, w, groups)
    name = result_dtype(operation, "gradient", inputs[0], HALF, out, out_dtype)
    results = None if out is None else (out,)
    options = (*options, batch_invariant, candidate)
    return _GRADIENT(inputs, options, name, results, stream)[0]


def _operands(
    operation: str, x: Array | Gathered, w: ScaledTensor, groups: Rows | Masked
) -> tuple[Arrays, Options]:
    """The operands of both products: inputs up to the bias, options up to batch_invariant."""
    rows, sources, factors, slots = x, None, None, 1
    if isinstance(x, Gathered):
        if x.transposed_factors is not None:
            expected = "it to be omitted, as there is no transpose"
            got = type(x.transposed_factors).__qualname__
            raise invalid_argument(operation, "transposed_factors", expected, got)
        rows, sources, factors, slots = x.x, x.sources, x.factors, x.slots
    expected_rows = None
    if isinstance(groups, Rows):
        kind, numbers = "rows", groups.offsets
    elif isinstance(groups, Masked):
        kind, (numbers, expected_rows) = "masked", groups
    else:
        expected = "Rows(offsets) or Masked(counts)"
        raise invalid_argument(operation, "groups", expected, type(groups).__qualname__)
    inputs = (rows, sources, factors, *require_weight(operation, w), numbers)
    return inputs, (slots, w.granularity, kind, expected_rows)


_DIMENSIONS: Final = {"rows": ("M", "columns"), "masked": ("groups", "rows", "columns")}


def _shape(
    operation: str, argument: str, inputs: Arrays, options: Options, columns: int
) -> Sequence[int]:
    """The shape of the result, which has as many columns as this dimension of w."""
    (x, sources, _, w, *_), kind = inputs, options[2]
    width = sizes(operation, "w", w, ("groups", "N", "K"))[columns]
    if sources is None:
        return (*sizes(operation, argument, x, _DIMENSIONS[kind])[:-1], width)
    if kind == "masked":
        raise invalid_argument(operation, argument, "an array beside Masked", "Gathered")
    return (*sizes(operation, "sources", sources, ("M",)), width)


def _rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    shape = _shape("grouped_gemm_weight_only", "x", inputs, options, 1)
    return (framework.empty(shape, dtype),)


def _gradient_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    shape = _shape("grouped_gemm_weight_only_gradient", "gradient", inputs, options, 2)
    return (framework.empty(shape, dtype),)


def _parameters(argument: str, **more: Any) -> dict[str, Any]:
    return {
        argument: Array,
        "sources": Array | None,
        "factors": Array | None,
        "slots": int,
        "w": ScaledTensor,
        "groups.numbers": Array,
        **more,
        "groups": str,
        "groups.expected_rows": int | None,
        "batch_invariant": bool,
        "candidate": str | None,
    }


_PRODUCT: Final = Op(
    "grouped_gemm_weight_only",
    _parameters("x", bias=Array | None),
    results=("out",),
    allocate=_rows,
    function=lambda: library.grouped_gemm_weight_only,
)

_GRADIENT: Final = Op(
    "grouped_gemm_weight_only_gradient",
    _parameters("gradient"),
    results=("out",),
    allocate=_gradient_rows,
    function=lambda: library.grouped_gemm_weight_only_gradient,
)
