"""Casts and products: the public functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ._dtypes import DTypeLike, dtype_name
from ._frameworks import Array, common_kind, framework_of, is_torch
from ._operations import CastOptions, Operations
from ._streams import StreamLike, stream_handle
from .errors import invalid_argument

if TYPE_CHECKING:
    from ._torch import RegisteredOperations

_Result = TypeVar("_Result")


def _run(
    operation: str,
    arguments: Sequence[str],
    arrays: Sequence[Array | None],
    stream: StreamLike | None,
    call: "Callable[[Operations | RegisteredOperations], _Result]",
) -> _Result:
    """`call` with the operations of the framework that the arrays (None: not given) come from."""
    if is_torch(arrays[0]):
        from . import _torch  # the caller has imported torch

        direct = _torch.direct_operations(arrays)
        if direct is None:
            common_kind(operation, arguments, arrays)
        operations = direct or _torch.REGISTERED
        if stream is None:
            return call(operations)
        handle = stream_handle(operation, stream)
        return _torch.on_stream(handle, arrays, lambda: call(operations))
    kind = common_kind(operation, arguments, arrays)
    address = None if stream is None else stream_handle(operation, stream)
    return call(Operations(framework_of(kind, arrays, address)))


@dataclass(frozen=True, eq=False, repr=False)
class ScaledTensor:
    """An FP8 matrix with the FP32 scales that take its codes back to values: x ≈ data × scale.

    data: [rows, cols], e4m3 or e5m2.
    scale: float32; its shape follows from the granularity (see scale_shape).
    granularity: how many elements share a scale: "tensor", "channel" (a row), "1x128" or "128x128".

    Equality is identity, as for arrays. Build one yourself from the tensors of a checkpoint; they
    are checked when they are used.
    """

    data: Array
    scale: Array
    granularity: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of the codes, in terms of the array's framework."""
        return self.data.dtype

    def dequantize(self, dtype: DTypeLike = "float32", stream: StreamLike | None = None) -> Array:
        """data × scale, the product in FP32, rounded to nearest even in `dtype`.

        dtype: float32, float16 or bfloat16.
        stream: as in gemm().
        Returns an array [rows, cols] in the framework of `data`.
        Raises InvalidArgumentError.
        """
        name = dtype_name("dequantize", "dtype", dtype)
        return _run(
            "dequantize",
            ("x", "x.scale"),
            (self.data, self.scale),
            stream,
            lambda operations: operations.dequantize(self, name),
        )

    def __repr__(self) -> str:
        return (
            f"ScaledTensor(data={self.dtype} {list(self.shape)}, "
            f"scale={self.scale.dtype} {list(self.scale.shape)}, granularity={self.granularity!r})"
        )


def quantize(
    x: Array,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    transpose: bool = False,
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """Cast a matrix to FP8 with one FP32 scale for each unit of its granularity.

    x: [rows, cols] float32, float16 or bfloat16; columns contiguous, any row stride.
    dtype: "e4m3" (float8_e4m3fn) or "e5m2".
    granularity: what shares a scale: "tensor", "channel" (each row), "1x128" (128 elements of a
        row) or "128x128" (a square). Partial units at the edges have scales of their own.
    power_of_two: round scales to powers of two; None: as the profile does by default (only "te"
        does).
    overflow: "saturate" clamps to the largest finite value, "nan" overflows as ml_dtypes does.
    profile: whose arithmetic to follow: "deepgemm", "vllm", "vllm-per-token", "te", "torchao",
        "torchao-tensor", "deepseek", "compressed-tensors" or "compressed-tensors-0.12".
        docs/numerics.md says which casts of each library these are, byte for byte.
    transpose: quantize the transpose of x, without a copy of it: the result is [cols, rows].
    stream: as in gemm().

    Returns a ScaledTensor in the framework of x. On a GPU 1x128 scales have the strides that gemm()
    reads fastest, (1, rows rounded up to a multiple of 4). NaN and infinities follow IEEE rules.
    Nothing is differentiated: backward through it raises torch's RuntimeError.
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize", "dtype", dtype)
    options = CastOptions(granularity, power_of_two, overflow, profile)
    data, scale = _run(
        "quantize",
        ("x",),
        (x,),
        stream,
        lambda operations: operations.quantize(x, name, options, transpose),
    )
    return ScaledTensor(data, scale, granularity)


def quantize_both(
    x: Array,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    stream: StreamLike | None = None,
) -> tuple[ScaledTensor, ScaledTensor]:
    """quantize(x) and quantize(x, transpose=True), byte for byte, as training needs both: on a GPU
    from one pass over x. Arguments and errors are those of quantize().
    """
    name = dtype_name("quantize_both", "dtype", dtype)
    options = CastOptions(granularity, power_of_two, overflow, profile)
    data, scale, transposed_data, transposed_scale = _run(
        "quantize_both",
        ("x",),
        (x,),
        stream,
        lambda operations: operations.quantize_both(x, name, options),
    )
    return (
        ScaledTensor(data, scale, granularity),
        ScaledTensor(transposed_data, transposed_scale, granularity),
    )


def convert(
    x: Array, dtype: DTypeLike, overflow: str = "saturate", stream: StreamLike | None = None
) -> Array:
    """Convert element by element, without scales, rounding to nearest even.

    x: float32, float16, bfloat16, e4m3 or e5m2; 1 or 2 dimensions, the last contiguous.
    dtype: any of these. float16 and bfloat16 overflow to infinity, FP8 by the rule `overflow`
    ("saturate" or "nan", as in quantize).
    stream: as in gemm().
    Returns an array of the same shape in the framework of x.
    Raises InvalidArgumentError.
    """
    name = dtype_name("convert", "dtype", dtype)
    return _run(
        "convert",
        ("x",),
        (x,),
        stream,
        lambda operations: operations.convert(x, name, overflow),
    )


def _require_scaled(argument: str, operand: object) -> None:
    if not isinstance(operand, ScaledTensor):
        raise invalid_argument("gemm", argument, "a ScaledTensor", type(operand).__qualname__)


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
    """The FP8 product a[M, K] · b[N, K]ᵀ (+ c[M, N]) (+ bias[N]).

    a, b: e4m3 or e5m2, mixed too. Granularities (a × b): tensor × tensor, channel × channel,
        1x128 × 128x128, 1x128 × 1x128.
    out: where to write, [M, N] bfloat16, float16 or float32; columns contiguous, any row stride.
    c: of out's dtype or float32; may be `out` itself, which then is added to in place.
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

    Partial sums over at most 128 values of K are scaled and added in FP32; one rounding at the end.
    Returns `out`, or a new array in the framework of a (from CuPy arrays, dtypes that CuPy has not
    are tvm_ffi.Tensor in its memory).
    Raises InvalidArgumentError that names the argument; on a GPU UnavailableError without a usable
    driver or compiler and UnsupportedError without kernels for it.
    """
    _require_scaled("a", a)
    _require_scaled("b", b)
    arguments = ("a", "a.scale", "b", "b.scale", "out", "c", "bias")
    arrays = (a.data, a.scale, b.data, b.scale, out, c, bias)
    if out is None:
        name = dtype_name("gemm", "out_dtype", "bfloat16" if out_dtype is None else out_dtype)
        return _run(
            "gemm",
            arguments,
            arrays,
            stream,
            lambda operations: operations.gemm(a, b, c, bias, name, fast_accumulation),
        )
    if out_dtype is not None:
        expected = dtype_name("gemm", "out", out.dtype)
        if dtype_name("gemm", "out_dtype", out_dtype) != expected:
            raise invalid_argument("gemm", "out_dtype", f"{expected}, as is 'out'", repr(out_dtype))
    _run(
        "gemm",
        arguments,
        arrays,
        stream,
        lambda operations: operations.gemm_out(out, a, b, c, bias, fast_accumulation),
    )
    return out
