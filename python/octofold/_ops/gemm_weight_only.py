"""Products with FP8 weights and wide activations, and their gradients."""

from collections.abc import Sequence
from typing import Final

from .._core.arrays import scratch
from .._core.calls import Op
from .._core.dtypes import ALL, FP8, HALF, WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, parts_of, require_one_level
from .._core.streams import StreamLike


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
        (octofold.nn.WeightOnlyLinear has one).
    stream: as in gemm().

    Codes become numbers exactly; products are added in FP32 and in a fixed order. Block scales
    multiply the sums of their 128 values, other scales the whole sum. The bias is added in FP32.
    The result is rounded once. Returns `out`, or a new array in the framework of x.
    Raises InvalidArgumentError, which names the argument; on a GPU UnavailableError without a
    usable driver or compiler and UnsupportedError where there are no kernels for it.
    """
    return multiply_by_weights(x, w, bias, out_dtype, batch_invariant, out, stream)


def multiply_by_weights(
    x: Array | ScaledTensor,
    w: ScaledTensor,
    bias: Array | None,
    out_dtype: DTypeLike | None,
    batch_invariant: bool,
    out: Array | None,
    stream: StreamLike | None,
    candidate: str | None = None,
) -> Array:
    """gemm_weight_only() by the candidate of a name; None: by the fastest."""
    operation = "gemm_weight_only"
    data, scale, granularity = parts_of(operation, "x", x)
    inputs = (data, scale, *require_weight(operation, w), bias)
    name = result_dtype(operation, "x", data, ALL, out, out_dtype)
    results = None
    if out is not None:
        results = (out, _workspace(operation, out, w.shape[1], stream))
    options = (granularity, w.granularity, batch_invariant, candidate)
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
    return _GRADIENT(inputs, (w.granularity, batch_invariant, None), name, results, stream)[0]


def require_weight(operation: str, w: ScaledTensor) -> tuple[Array, Array]:
    """Codes and scales of a ScaledTensor of one level."""
    if not isinstance(w, ScaledTensor):
        raise invalid_argument(operation, "w", "a ScaledTensor", type(w).__qualname__)
    require_one_level(operation, "w", w)
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
    of FP8; empty where `out` is given."""
    if out is not None:
        require_dtype_of_out(operation, out, out_dtype)
        return ""
    if out_dtype is not None:
        return dtype_name(operation, "out_dtype", out_dtype, WIDE)
    name = dtype_name(operation, argument, getattr(x, "dtype", x), dtypes)
    return "float32" if name in FP8 else name


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
    "gemm_weight_only",
    {**gemm_weight_only.__annotations__, "candidate": str | None},
    results=("out", "workspace?"),
    allocate=_rows,
    function=lambda: library.gemm_weight_only,
)

_GRADIENT: Final = Op(
    "gemm_weight_only_gradient",
    {**gemm_weight_only_gradient.__annotations__, "candidate": str | None},
    results=("out", "workspace?"),
    allocate=_gradient_rows,
    function=lambda: library.gemm_weight_only_gradient,
)
