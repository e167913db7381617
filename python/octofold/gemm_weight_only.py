"""Products whose weights alone are FP8, and their gradients."""

from typing import Final

from ._core.dtypes import HALF, WIDE, DTypeLike, dtype_name, require_dtype_of_out
from ._core.frameworks import Array, Framework
from ._core.ops import Arrays, Op, Options, require_matrix
from ._core.streams import StreamLike
from ._library import library
from .errors import invalid_argument
from .scaled_tensor import ScaledTensor, require_one_level


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
    return _GEMM(inputs, (w.granularity,), name, None if out is None else (out,), stream)[0]


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
    return _GRADIENT(inputs, (w.granularity,), name, None if out is None else (out,), stream)[0]


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


def _rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, w = inputs[0].shape, inputs[1].shape
    require_matrix("gemm_weight_only", "x", x)
    require_matrix("gemm_weight_only", "w", w)
    return (framework.empty((*x[:-1], w[0]), dtype),)


def _gradient_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    gradient, w = inputs[0].shape, inputs[1].shape
    require_matrix("gemm_weight_only_gradient", "gradient", gradient)
    require_matrix("gemm_weight_only_gradient", "w", w)
    return (framework.empty((*gradient[:-1], w[1]), dtype),)


_GEMM: Final = Op(
    "gemm_weight_only",
    gemm_weight_only.__annotations__,
    results=("out",),
    allocate=_rows,
    function=lambda: library.gemm_weight_only,
)

_GRADIENT: Final = Op(
    "gemm_weight_only_gradient",
    gemm_weight_only_gradient.__annotations__,
    results=("out",),
    allocate=_gradient_rows,
    function=lambda: library.gemm_weight_only_gradient,
)
