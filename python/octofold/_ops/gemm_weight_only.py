"""Products with FP8 weights and wide activations, and their gradients; of groups of 16-bit rows
too."""

from collections.abc import Sequence
from typing import Any, Final

from .._core.arrays import scratch
from .._core.calls import Op
from .._core.errors import invalid_argument, require_type
from .._core.formats import ALL, FP8, HALF, DTypeLike, dtype_name, dtype_of_result
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, parts_of
from .cast_sources import Gathered
from .grouped_gemm import Masked, Rows, parts_of_groups, sizes


def gemm_weight_only(
    x: Array | ScaledTensor,
    w: ScaledTensor,
    *,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute x[..., K] · w[N, K]ᵀ (+ bias[N]) with FP8 weights, on GPUs with FP8 units or without.

    x: float16 or bfloat16 (only float16 before compute capability 8.0); columns contiguous, any
        row stride. A vector x [K] is one row; its result is [N]. Up to 16 rows may also be float32,
        e4m3, e5m2, or a ScaledTensor of any granularity.
    w: e4m3 or e5m2 with scales of any granularity, as checkpoints have them: nothing is repacked.
    bias: of the result's dtype or float32, contiguous. Only with an x of 16 bits.
    out_dtype: the dtype of the result: x's dtype or float32; for an x of float32 or FP8 any of
        float32, float16 and bfloat16. The default is the dtype of `out`, else that of x, and
        float32 where x is FP8.
    batch_invariant: a row of the result depends on that row of x alone, not on how many rows there
        are nor on its place; docs/batch-invariance.md tells what that costs. Also where
        octofold.set_batch_invariant(True) is on.
    out: where to write, [..., N]. As in gemm(), nothing may require a gradient
        (octofold.nn.weight_only_linear() has one).
    stream: as in gemm().

    Codes become numbers exactly; products are added in FP32 and in a fixed order. Block scales
    multiply the sums of their 128 values, other scales the whole sum. The bias is added in FP32.
    The result is rounded once. Returns `out`, or a new array in the framework of x.
    Raises InvalidArgumentError, which names the argument; on a GPU UnavailableError without a
    usable driver or compiler and UnsupportedError where there are no kernels for it.
    """
    operation = "gemm_weight_only"
    data, scale, granularity = parts_of(x)
    inputs = (data, scale, *require_weight(operation, w), bias)
    name = result_dtype(operation, "x", data, ALL, out, out_dtype)
    results = None
    if out is not None:
        results = (out, _workspace(operation, out, w.shape[1], stream))
    options = (granularity, w.granularity, batch_invariant)
    return _GEMM(inputs, options, name, results, stream)[0]


def gemm_weight_only_gradient(
    gradient: Array,
    w: ScaledTensor,
    *,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute gradient[..., N] · w[N, K], the gradient by x of gemm_weight_only().

    gradient: that by the result: float16 or bfloat16; columns contiguous, any row stride.
    w: as in gemm_weight_only().
    out_dtype: the dtype of the result; by default that of `out`, else gradient's.
    out: where to write, [..., K] of gradient's dtype or float32.
    batch_invariant, stream: as in gemm_weight_only().

    Returns and raises as gemm_weight_only().
    """
    operation = "gemm_weight_only_gradient"
    inputs = (gradient, *require_weight(operation, w))
    name = result_dtype(operation, "gradient", gradient, HALF, out, out_dtype)
    results = None
    if out is not None:
        results = (out, _workspace(operation, out, w.shape[0], stream))
    return _GRADIENT(inputs, (w.granularity, batch_invariant), name, results, stream)[0]


def require_weight(operation: str, w: ScaledTensor) -> tuple[Array, Array]:
    """Codes and scales of a ScaledTensor."""
    require_type(operation, "w", w, ScaledTensor, "a ScaledTensor")
    return w.data, w.scale


def result_dtype(
    operation: str,
    argument: str,
    x: Array,
    dtypes: tuple[str, ...],
    out: Array | None,
    out_dtype: DTypeLike | None,
) -> str:
    """The dtype of a new result, by default that of x, which has to be one of `dtypes`, and float32
    of FP8."""
    if out is None and out_dtype is None:
        name = dtype_name(operation, argument, getattr(x, "dtype", x), dtypes)
        return "float32" if name in FP8 else name
    return dtype_of_result(operation, out, out_dtype)


def _workspace_size(shape: Sequence[int], depth: int) -> int:
    """weight_only_workspace_size() of the library, of a result of this shape; for torch's symbolic
    sizes too."""
    *leading, columns = shape
    rows = 1
    for count in leading:
        rows *= count
    if rows <= 16 or columns <= 0:
        return 0
    for splits in (4, 2):
        if splits * 512 <= depth and splits * rows * columns <= 2**22:
            return splits * rows * columns
    return 0


def _workspace(operation: str, out: Array, depth: int, stream: StreamLike | None) -> Array | None:
    size = _workspace_size(tuple(getattr(out, "shape", (0,))), depth)
    return scratch(operation, "out", out, (size,), stream) if size else None


def _results(framework: Framework, shape: tuple[int, ...], depth: int, dtype: str) -> Arrays:
    size = _workspace_size(shape, depth)
    workspace = framework.empty((size,), "float32") if size else None
    return framework.empty(shape, dtype), workspace


def _rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, w = inputs[0].shape, inputs[2].shape
    if len(x) == 0:
        raise invalid_argument("gemm_weight_only", "x", "rows [..., K]", "no dimensions")
    require_matrix("gemm_weight_only", "w", w)
    return _results(framework, (*x[:-1], w[0]), w[1], dtype)


def _gradient_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    gradient, w = inputs[0].shape, inputs[1].shape
    require_matrix("gemm_weight_only_gradient", "gradient", gradient)
    require_matrix("gemm_weight_only_gradient", "w", w)
    return _results(framework, (*gradient[:-1], w[1]), w[0], dtype)


_GEMM: Final = Op(
    "gemm_weight_only", gemm_weight_only.__annotations__, ("out", "workspace?"), _rows
)

_GRADIENT: Final = Op(
    "gemm_weight_only_gradient",
    gemm_weight_only_gradient.__annotations__,
    ("out", "workspace?"),
    _gradient_rows,
)


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
    operation = "grouped_gemm_weight_only"
    inputs, options = _operands(operation, x, w, groups)
    name = result_dtype(operation, "x", inputs[0], HALF, out, out_dtype)
    results = None if out is None else (out,)
    options = (*options, batch_invariant)
    return _GROUPED_GEMM((*inputs, bias), options, name, results, stream)[0]


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
    operation = "grouped_gemm_weight_only_gradient"
    inputs, options = _operands(operation, gradient, w, groups)
    name = result_dtype(operation, "gradient", inputs[0], HALF, out, out_dtype)
    results = None if out is None else (out,)
    options = (*options, batch_invariant)
    return _GROUPED_GRADIENT(inputs, options, name, results, stream)[0]


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
    expected = "Rows(offsets) or Masked(counts)"
    kind, numbers, expected_rows, _ = parts_of_groups(operation, groups, (Rows, Masked), expected)
    inputs = (rows, sources, factors, *require_weight(operation, w), numbers)
    return inputs, (slots, w.granularity, kind, expected_rows)


_DIMENSIONS: Final = {"rows": ("M", "columns"), "masked": ("groups", "rows", "columns")}


def _grouped_shape(
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


def _grouped_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    shape = _grouped_shape("grouped_gemm_weight_only", "x", inputs, options, 1)
    return (framework.empty(shape, dtype),)


def _grouped_gradient_rows(
    framework: Framework, inputs: Arrays, options: Options, dtype: str
) -> Arrays:
    shape = _grouped_shape("grouped_gemm_weight_only_gradient", "gradient", inputs, options, 2)
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
    }


_GROUPED_GEMM: Final = Op(
    "grouped_gemm_weight_only",
    _parameters("x", bias=Array | None),
    results=("out",),
    allocate=_grouped_rows,
    function=lambda: library.grouped_gemm_weight_only,
)

_GROUPED_GRADIENT: Final = Op(
    "grouped_gemm_weight_only_gradient",
    _parameters("gradient"),
    results=("out",),
    allocate=_grouped_gradient_rows,
    function=lambda: library.grouped_gemm_weight_only_gradient,
)
