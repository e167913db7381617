"""Products whose weights alone are FP8, and their gradients."""

from collections.abc import Sequence
from typing import Final

from .._core.arrays import scratch
from .._core.calls import Op
from .._core.dtypes import HALF, WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def gemm_weight_only(
    x: Array,
    w: ScaledTensor,
    bias: Array | None = None,
    out: Array | None = None,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """x[..., K] · w[N, K]ᵀ (+ bias[N]) with x in 16 bits, on GPUs with FP8 units or without.

    x: float16 or bfloat16 (float16 alone before compute capability 8.0); columns contiguous, any
        row stride.
    w: e4m3 or e5m2, scales of any granularity; as checkpoints have it, nothing is repacked.
    bias: of the result's dtype or float32, contiguous.
    out: where to write, [..., N] of x's dtype or float32. As in gemm(), nothing may require a
        gradient (octofold.nn.WeightOnlyLinear has one).
    out_dtype: of the result; by default that of `out`, else x's.
    stream: as in gemm().

    Codes become numbers of x's dtype exactly; their products are added in FP32 and in a fixed
    order. Scales of blocks multiply the sums of their 128 values, others the whole sum; bias is
    added in FP32; one rounding at the end. Returns `out`, or a new array in the framework of x.
    Raises InvalidArgumentError that names the argument; on a GPU UnavailableError without a usable
    driver or compiler and UnsupportedError without kernels for it.
    """
    inputs = (x, *_weight("gemm_weight_only", w), bias)
    name = _result_dtype("gemm_weight_only", "x", x, out, out_dtype)
    results = None
    if out is not None:
        results = (out, _workspace("gemm_weight_only", out, w.shape[1], stream))
    return _GEMM(inputs, (w.granularity,), name, results, stream)[0]


def gemm_weight_only_gradient(
    gradient: Array,
    w: ScaledTensor,
    out: Array | None = None,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """gradient[..., N] · w[N, K]: that of gemm_weight_only()'s x, from its result's.

    gradient: float16 or bfloat16; columns contiguous, any row stride.
    w: as in gemm_weight_only().
    out: where to write, [..., K] of gradient's dtype or float32.
    out_dtype: of the result; by default that of `out`, else gradient's.
    stream: as in gemm().

    Returns and raises as gemm_weight_only().
    """
    operation = "gemm_weight_only_gradient"
    inputs = (gradient, *_weight(operation, w))
    name = _result_dtype(operation, "gradient", gradient, out, out_dtype)
    results = None
    if out is not None:
        results = (out, _workspace(operation, out, w.shape[0], stream))
    return _GRADIENT(inputs, (w.granularity,), name, results, stream)[0]


def _weight(operation: str, w: ScaledTensor) -> tuple[Array, Array]:
    if not isinstance(w, ScaledTensor):
        raise invalid_argument(operation, "w", "a ScaledTensor", type(w).__qualname__)
    require_one_level(operation, "w", w)
    return w.data, w.scale


def _result_dtype(
    operation: str, argument: str, x: Array, out: Array | None, out_dtype: DTypeLike | None
) -> str:
    """Of a new result; empty where `out` is it."""
    if out is not None:
        require_dtype_of_out(operation, out, out_dtype)
        return ""
    if out_dtype is not None:
        return dtype_name(operation, "out_dtype", out_dtype, WIDE)
    return dtype_name(operation, argument, getattr(x, "dtype", x), HALF)


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
    x, w = inputs[0].shape, inputs[1].shape
    require_matrix("gemm_weight_only", "x", x)
    require_matrix("gemm_weight_only", "w", w)
    return _results(framework, (*x[:-1], w[0]), w[1], dtype)


def _gradient_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    gradient, w = inputs[0].shape, inputs[1].shape
    require_matrix("gemm_weight_only_gradient", "gradient", gradient)
    require_matrix("gemm_weight_only_gradient", "w", w)
    return _results(framework, (*gradient[:-1], w[1]), w[0], dtype)


_GEMM: Final = Op(
    "gemm_weight_only",
    gemm_weight_only.__annotations__,
    results=("out", "workspace?"),
    allocate=_rows,
    function=lambda: library.gemm_weight_only,
)

_GRADIENT: Final = Op(
    "gemm_weight_only_gradient",
    gemm_weight_only_gradient.__annotations__,
    results=("out", "workspace?"),
    allocate=_gradient_rows,
    function=lambda: library.gemm_weight_only_gradient,
)
