"""Casts and products: the public functions."""

from dataclasses import dataclass
from typing import Protocol

from ._dtypes import DTypeLike, dtype_name
from ._frameworks import Array, check_same_framework, framework_of, is_torch
from ._operations import Operations, Scaled
from .errors import invalid_argument


class _AnyOperations(Protocol):
    """What Operations and torch's registered ops have in common."""

    def quantize(
        self,
        x: Array,
        dtype: str,
        granularity: str,
        power_of_two: bool | None,
        overflow: str,
        profile: str,
        transpose: bool,
    ) -> tuple[Array, Array]: ...

    def dequantize(self, x: Scaled, dtype: str) -> Array: ...

    def convert(self, x: Array, dtype: str, overflow: str) -> Array: ...

    def gemm(
        self,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        out_dtype: str,
        fast_accumulation: bool,
    ) -> Array: ...

    def gemm_out(
        self,
        out: Array,
        a: Scaled,
        b: Scaled,
        c: Array | None,
        bias: Array | None,
        fast_accumulation: bool,
    ) -> None: ...


def _operations(operation: str, **arrays: Array | None) -> _AnyOperations:
    """Who computes on these arrays (None: not given)."""
    check_same_framework(operation, arrays)
    given = [array for array in arrays.values() if array is not None]
    if is_torch(given[0]):
        from ._torch import TorchOperations  # only where the caller has imported torch

        return TorchOperations()
    return Operations(framework_of(given))


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

    def dequantize(self, dtype: DTypeLike = "float32") -> Array:
        """data × scale, the product in FP32, rounded to nearest even in `dtype`.

        dtype: float32, float16 or bfloat16.
        Returns an array [rows, cols] in the framework of `data`.
        Raises InvalidArgumentError.
        """
        name = dtype_name("dequantize", "dtype", dtype)
        operations = _operations("dequantize", **{"x": self.data, "x.scale": self.scale})
        return operations.dequantize(_parts(self), name)

    def __repr__(self) -> str:
        return (
            f"ScaledTensor(data={self.dtype} {list(self.shape)}, "
            f"scale={self.scale.dtype} {list(self.scale.shape)}, granularity={self.granularity!r})"
        )


def _parts(tensor: ScaledTensor) -> Scaled:
    return Scaled(tensor.data, tensor.scale, tensor.granularity)


def quantize(
    x: Array,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    transpose: bool = False,
) -> ScaledTensor:
    """Cast a matrix to FP8 with one FP32 scale for each unit of its granularity.

    x: [rows, cols] float32, float16 or bfloat16; columns contiguous, any row stride.
    dtype: "e4m3" (float8_e4m3fn) or "e5m2".
    granularity: what shares a scale: "tensor", "channel" (each row), "1x128" (128 elements of a
        row) or "128x128" (a square). Partial units at the edges have scales of their own.
    power_of_two: round scales to powers of two; None: as the profile does by default (only "te"
        does).
    overflow: "saturate" clamps to the largest finite value, "nan" overflows as ml_dtypes does.
    profile: whose arithmetic to follow, byte for byte: "deepgemm", "vllm", "te", "torchao",
        "deepseek" or "compressed-tensors".
    transpose: quantize the transpose of x, without a copy of it: the result is [cols, rows].

    Returns a ScaledTensor in the framework of x. NaN and infinities follow IEEE rules. Nothing is
    differentiated: backward through it raises torch's RuntimeError.
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize", "dtype", dtype)
    data, scale = _operations("quantize", x=x).quantize(
        x, name, granularity, power_of_two, overflow, profile, transpose
    )
    return ScaledTensor(data, scale, granularity)


def convert(x: Array, dtype: DTypeLike, overflow: str = "saturate") -> Array:
    """Convert element by element, without scales, rounding to nearest even.

    x: float32, float16, bfloat16, e4m3 or e5m2; 1 or 2 dimensions, the last contiguous.
    dtype: any of these. float16 and bfloat16 overflow to infinity, FP8 by the rule `overflow`
    ("saturate" or "nan", as in quantize).
    Returns an array of the same shape in the framework of x.
    Raises InvalidArgumentError.
    """
    name = dtype_name("convert", "dtype", dtype)
    return _operations("convert", x=x).convert(x, name, overflow)


def gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Array | None = None,
    c: Array | None = None,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
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

    Partial sums over at most 128 values of K are scaled and added in FP32; one rounding at the end.
    Returns `out`, or a new array in the framework of a.
    Raises InvalidArgumentError that names the argument.
    """
    for argument, operand in (("a", a), ("b", b)):
        if not isinstance(operand, ScaledTensor):
            raise invalid_argument("gemm", argument, "a ScaledTensor", type(operand).__qualname__)
    operations = _operations(
        "gemm",
        **{"a": a.data, "a.scale": a.scale, "b": b.data, "b.scale": b.scale},
        out=out,
        c=c,
        bias=bias,
    )
    if out is None:
        name = dtype_name("gemm", "out_dtype", "bfloat16" if out_dtype is None else out_dtype)
        return operations.gemm(_parts(a), _parts(b), c, bias, name, fast_accumulation)
    if out_dtype is not None:
        expected = dtype_name("gemm", "out", out.dtype)
        if dtype_name("gemm", "out_dtype", out_dtype) != expected:
            raise invalid_argument("gemm", "out_dtype", f"{expected}, as is 'out'", repr(out_dtype))
    operations.gemm_out(out, _parts(a), _parts(b), c, bias, fast_accumulation)
    return out
