"""Products of an FP8 matrix and a few vectors."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def gemv(
    w: ScaledTensor,
    x: Array | ScaledTensor,
    out: Array | None = None,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """x[..., K] · w[N, K]ᵀ of one to sixteen vectors x, on GPUs with FP8 units or without.

    w: e4m3 or e5m2, scales of any granularity; columns contiguous, any row stride.
    x: [K], or with leading dimensions of at most 16 vectors in all: float32, float16, bfloat16,
        e4m3 or e5m2, or a ScaledTensor of any granularity.
    out: where to write, [..., N] float32, float16 or bfloat16. As in gemm(), nothing may require a
        gradient.
    out_dtype: of the result; by default that of `out`, else x's, and float32 where x is FP8.
    stream: as in gemm().

    Codes become numbers exactly; products are added in FP32 and in a fixed order. Scales of blocks
    multiply the sums of their 128 values, others the whole sum; one rounding at the end.
    Returns `out`, or a new array in the framework of w.
    Raises InvalidArgumentError that names the argument; on a GPU UnavailableError without a usable
    driver or compiler and UnsupportedError without kernels for it.
    """
    if not isinstance(w, ScaledTensor):
        raise invalid_argument("gemv", "w", "a ScaledTensor", type(w).__qualname__)
    require_one_level("gemv", "w", w)
    x_data, x_scale, x_granularity = x, None, None
    if isinstance(x, ScaledTensor):
        require_one_level("gemv", "x", x)
        x_data, x_scale, x_granularity = x.data, x.scale, x.granularity
    inputs = (w.data, w.scale, x_data, x_scale)
    options = (w.granularity, x_granularity)
    if out is None:
        if out_dtype is None:
            own = dtype_name("gemv", "x", getattr(x_data, "dtype", x_data), (*WIDE, *FP8))
            name = "float32" if own in FP8 else own
        else:
            name = dtype_name("gemv", "out_dtype", out_dtype, WIDE)
        return _GEMV(inputs, options, name, None, stream)[0]
    require_dtype_of_out("gemv", out, out_dtype)
    _GEMV(inputs, options, "", (out,), stream)
    return out


def _vectors(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    w, x = inputs[0].shape, inputs[2].shape
    if len(w) != 2:
        raise invalid_argument("gemv", "w", "a matrix [N, K]", f"{len(w)} dimensions")
    if len(x) == 0:
        raise invalid_argument("gemv", "x", "vectors [..., K]", "no dimensions")
    return (framework.empty((*x[:-1], w[0]), dtype),)


_GEMV: Final = Op(
    "gemv",
    gemv.__annotations__,
    results=("out",),
    allocate=_vectors,
    function=lambda: library.gemv,
)
