"""Products, and the rows of them that may arrive while they run."""

from typing import Any, Final, NamedTuple

from .._core.calls import Op
from .._core.errors import invalid_argument, require_type
from .._core.formats import DTypeLike, Format, FormatLike, dtype_of_result, format_of
from .._core.frameworks import Array, Framework, StreamLike
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor


class Arrivals(NamedTuple):
    """The rows of `a` that are there: n shards of M / n rows each, one below another, as n ranks
    gather them.

    flags: int32 [n], on the device of `a`; n divides M. A shard is there, codes and scales, once
        its flag is not 0. The product leaves the flags as they are: set them to 0 before the next
        copies.
    own: the number of the shard that comes first, from 0 to n - 1. Then come those behind it, and
        then those from 0 on.

    On a GPU the kernel itself waits, without an end, and holds all multiprocessors meanwhile. So
    what sets a flag must not need any of them: copies by the copy engine on another stream, queued
    before the product is, or another GPU. A flag is set behind what it tells of, in the order of
    one stream. The CPU waits 60 s for each shard, then raises UnavailableError.
    """

    flags: Array
    own: int = 0


def gemm(
    a: Array | ScaledTensor,
    b: ScaledTensor,
    *,
    c: Array | None = None,
    bias: Array | None = None,
    format: FormatLike = "1x128",
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    batch_invariant: bool = False,
    arrivals: Arrivals | None = None,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute the FP8 product a[..., K] · b[N, K]ᵀ (+ c[..., N]) (+ bias[N]).

    a: e4m3 or e5m2 with scales of any granularity; or a float32, float16 or bfloat16 array, which
        the product casts itself. The result has its leading dimensions.
    b: e4m3 or e5m2 with scales of any granularity.
    c: [..., N], of out's dtype or float32; may be `out` itself, to which the product is then added
        in place. None if the product casts `a`.
    bias: of out's dtype or float32, contiguous.
    format: for the cast of an array `a`: a Format or its words, of granularity 1x128.
    out_dtype: the dtype of the result; by default that of `out`, else bfloat16.
    fast_accumulation: let a backend sum all of K in the tensor core (tensor and channel scales
        only); the CPU gains nothing by it and does not.
    batch_invariant: a row of the result depends on that row of `a` alone, not on how many rows
        there are nor on its place; docs/batch-invariance.md tells what that costs. Also where
        octofold.set_batch_invariant(True) is on.
    arrivals: where rows of `a` are still on their way: an Arrivals, which says in which order they
        are multiplied, as each shard of them comes. `a` is a ScaledTensor with K ≥ 1 then; beside
        128x128 scales its shards are whole blocks of 128 rows, and the scale of a "tensor" is there
        from the start. On a GPU (9.0: H100, H200) no K is split then; else the bits are the same.
    out: where to write, [..., N] bfloat16, float16 or float32; columns contiguous, any row stride.
        As in torch.mm(out=), nothing may require a gradient.
    stream: the stream on which the GPU is to queue the work: the address of a CUDA stream of the
        arrays' device, or an object that has one (torch's, CuPy's, or with __cuda_stream__). None:
        the current stream of torch or CuPy, for others the legacy default stream. The call does not
        wait for the GPU. With torch tensors it is as if torch.cuda.stream(stream) were around the
        call, and the tensors' memory is not reused until the stream is done with it; with other
        arrays the caller has to see to that. The CPU ignores it.

    Partial sums over at most 128 values of K are scaled and added in FP32; channel scales multiply
    the finished sums; the result is rounded once. For an array `a` the result is that of
    gemm(quantize(a, format), b), to the bit unless the two split K differently, which
    batch_invariant excludes. That is meant for few rows, as in decoding: it saves a kernel, and
    casts `a` once for each 64 columns of the result.
    Returns `out`, or a new array in the framework of a. (CuPy lacks some dtypes; such results are
    tvm_ffi.Tensor in CuPy's memory.)
    Raises InvalidArgumentError, which names the argument; UnsupportedError for an `out` where
    something requires a gradient; on a GPU UnavailableError without a usable driver or compiler and
    UnsupportedError where there are no kernels for it, or, with an array `a`, for rows of b that do
    not begin at multiples of 16 bytes.
    """
    if not isinstance(b, ScaledTensor):
        raise invalid_argument("gemm", "b", "a ScaledTensor", type(b).__qualname__)
    flags, own = None, None
    if arrivals is not None:
        require_type("gemm", "arrivals", arrivals, Arrivals, "an Arrivals")
        flags, own = arrivals
    how = fast_accumulation, batch_invariant
    inputs: Arrays
    options: Options
    if isinstance(a, ScaledTensor):
        if format != "1x128":
            raise invalid_argument(
                "gemm", "format", "it to be omitted for an 'a' that is cast already", repr(format)
            )
        if a.scale is None:
            raise invalid_argument("gemm", "a.scale", "the scales of its codes", "None")
        inputs = (a.data, a.scale, b.data, b.scale, c, bias, flags)
        kinds = a.granularity, b.granularity
        options = (*kinds, *how, None, None, None, None, own)
    else:
        cast = _format_of_a(format)
        inputs = (a, None, b.data, b.scale, c, bias, flags)
        of_cast = (cast.dtype, *cast.options)
        options = (None, b.granularity, *how, *of_cast, own)
    name = dtype_of_result("gemm", out, out_dtype)
    return _GEMM(inputs, options, name, None if out is None else (out,), stream)[0]


def _format_of_a(format: FormatLike) -> Format:
    cast = format_of("gemm", format)
    if cast.granularity != "1x128":
        raise invalid_argument("gemm", "format", "one of granularity 1x128", str(cast))
    return cast


def _product(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    a, b = inputs[0].shape, inputs[2].shape
    require_matrix("gemm", "a", a)
    require_matrix("gemm", "b", b)
    return (framework.empty((*a[:-1], b[0]), dtype),)


_PARAMETERS: Final[dict[str, Any]] = {
    "a": Array | ScaledTensor,
    "b": ScaledTensor,
    "c": Array | None,
    "bias": Array | None,
    "arrivals.flags": Array | None,
    "fast_accumulation": bool,
    "batch_invariant": bool,
    "format.dtype": str | None,
    "format.power_of_two": bool | None,
    "format.overflow": str | None,
    "format.rule": str | None,
    "arrivals.own": int | None,
}

_GEMM: Final = Op("gemm", _PARAMETERS, ("out",), _product, in_place="c")
