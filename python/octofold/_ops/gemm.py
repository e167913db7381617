"""Products."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Array | None = None,
    c: Array | None = None,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    stream: StreamLike | None = None,
) -> Array:
    """The FP8 product a[..., K] · b[N, K]ᵀ (+ c[..., N]) (+ bias[N]).

    a, b: e4m3 or e5m2, mixed too; scales of any granularity on either side, two-level ones of b.
        Leading dimensions of a are those of the result.
    out: where to write, [..., N] bfloat16, float16 or float32; columns contiguous, any row stride.
        As in torch.mm(out=), nothing may require a gradient.
    c: [..., N], of out's dtype or float32; may be `out` itself, which then is added to in place.
    bias: of out's dtype or float32, contiguous.
    out_dtype: of the result; by default that of `out`, else bfloat16.
    fast_accumulation: let a backend sum all of K in the tensor core (tensor and channel scales
        only); the CPU gains nothing by it and does not.
    stream: where the GPU is to queue the work: the address of a CUDA stream of the arrays' device,
        or an object that has one (torch's, CuPy's, or with __cuda_stream__). None: the current
        stream of torch or CuPy, for others the legacy default stream. The call does not wait for
        the GPU. With torch tensors it is as if torch.cuda.stream(stream) were around the call, and
        the tensors' memory is kept from reuse until the stream is done with it; with other arrays
        that is the caller's care. The CPU does not look at it.

    Partial sums over at most 128 values of K are scaled and added in FP32; factors of channels are
    applied to the finished sums; one rounding at the end.
    Returns `out`, or a new array in the framework of a (from CuPy arrays, dtypes that CuPy has not
    are tvm_ffi.Tensor in its memory).
    Raises InvalidArgumentError that names the argument; UnsupportedError for an `out` beside
    something to differentiate; on a GPU UnavailableError without a usable driver or compiler and
    UnsupportedError without kernels for it.
    """
    if not (isinstance(a, ScaledTensor) and isinstance(b, ScaledTensor)):
        argument, operand = ("b", b) if isinstance(a, ScaledTensor) else ("a", a)
        got = type(operand).__qualname__
        raise invalid_argument("gemm", argument, "a ScaledTensor", got)
    require_one_level("gemm", "a", a)
    inputs = (a.data, a.scale, b.data, b.scale, c, bias, b.channel_scale)
    options = (a.granularity, b.granularity, fast_accumulation)
    if out is None:
        name = "bfloat16"
        if out_dtype is not None:
            name = dtype_name("gemm", "out_dtype", out_dtype, WIDE)
        return _GEMM(inputs, options, name, None, stream)[0]
    require_dtype_of_out("gemm", out, out_dtype)
    _GEMM(inputs, options, "", (out,), stream)
    return out


def _product(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    a, b = inputs[0].shape, inputs[2].shape
    require_matrix("gemm", "a", a)
    require_matrix("gemm", "b", b)
    return (framework.empty((*a[:-1], b[0]), dtype),)


_GEMM: Final = Op(
    "gemm",
    {**gemm.__annotations__, "b.channel_scale": Array | None},
    results=("out",),
    allocate=_product,
    function=lambda: library.gemm,
    in_place="c",
)
