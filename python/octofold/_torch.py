"""torch: tensors in and out of the library, and the operations as registered torch ops.

The public functions go through torch.ops.octofold, so that torch.compile sees one opaque op with
known shapes. None has a gradient: backward through one raises RuntimeError.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
import tvm_ffi
from torch import Tensor

from ._frameworks import Array, reinterpret
from ._operations import Operations, Scaled, require_matrix, scale_shape

_DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class TorchFramework:
    """Tensors on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def export(self, array: Tensor, writable: bool) -> tvm_ffi.Tensor:
        tensor = array.detach()
        if tensor.dtype.itemsize > 1:
            return tvm_ffi.from_dlpack(tensor)
        # Not every torch exports FP8 by DLPack; all export bytes.
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise BufferError(f"dtype {tensor.dtype} is unknown")
        return reinterpret(tvm_ffi.from_dlpack(tensor.view(torch.uint8)), name)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return torch.empty(tuple(shape), dtype=_DTYPES[dtype], device=self._device)

    def deliver(self, array: Tensor) -> Tensor:
        return array


def _on_device_of(tensor: Tensor) -> Operations:
    return Operations(TorchFramework(tensor.device))


_SCALED: Final = "Tensor {0}, Tensor {0}_scale, str {0}_granularity"
_OPERANDS: Final = f"{_SCALED.format('a')}, {_SCALED.format('b')}, Tensor? c, Tensor? bias"


@torch.library.custom_op(
    "octofold::quantize",
    mutates_args=(),
    schema="(Tensor x, ScalarType dtype, str granularity, bool? power_of_two, str overflow, "
    "str profile, bool transpose) -> (Tensor, Tensor)",
)
def _quantize(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
    transpose: bool,
) -> tuple[Tensor, Tensor]:
    return _on_device_of(x).quantize(
        x, _NAMES[dtype], granularity, power_of_two, overflow, profile, transpose
    )


@_quantize.register_fake
def _(
    x: Tensor,
    dtype: torch.dtype,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
    transpose: bool,
) -> tuple[Tensor, Tensor]:
    rows, cols = require_matrix("quantize", "x", x.shape)
    if transpose:
        rows, cols = cols, rows
    scale = x.new_empty(_symbolic_scale_shape(granularity, rows, cols), dtype=torch.float32)
    return x.new_empty((rows, cols), dtype=dtype), scale


def _symbolic_scale_shape(granularity: str, rows: int, cols: int) -> tuple[int, ...]:
    """scale_shape() for sizes that may be symbols, which C++ cannot take."""
    shapes: dict[str, Callable[[], tuple[int, ...]]] = {
        "tensor": lambda: (1,),
        "channel": lambda: (rows,),
        "1x128": lambda: (rows, (cols + 127) // 128),
        "128x128": lambda: ((rows + 127) // 128, (cols + 127) // 128),
    }
    if granularity not in shapes:
        scale_shape(granularity, 0, 0)  # raises the library's error
    return shapes[granularity]()


@torch.library.custom_op(
    "octofold::dequantize",
    mutates_args=(),
    schema=f"({_SCALED.format('x')}, ScalarType dtype) -> Tensor",
)
def _dequantize(x: Tensor, x_scale: Tensor, x_granularity: str, dtype: torch.dtype) -> Tensor:
    result: Tensor = _on_device_of(x).dequantize(Scaled(x, x_scale, x_granularity), _NAMES[dtype])
    return result


@_dequantize.register_fake
def _(x: Tensor, x_scale: Tensor, x_granularity: str, dtype: torch.dtype) -> Tensor:
    return x.new_empty(require_matrix("dequantize", "x", x.shape), dtype=dtype)


@torch.library.custom_op(
    "octofold::convert",
    mutates_args=(),
    schema="(Tensor x, ScalarType dtype, str overflow) -> Tensor",
)
def _convert(x: Tensor, dtype: torch.dtype, overflow: str) -> Tensor:
    result: Tensor = _on_device_of(x).convert(x, _NAMES[dtype], overflow)
    return result


@_convert.register_fake
def _(x: Tensor, dtype: torch.dtype, overflow: str) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op(
    "octofold::gemm",
    mutates_args=(),
    schema=f"({_OPERANDS}, ScalarType out_dtype, bool fast_accumulation) -> Tensor",
)
def _gemm(
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast_accumulation: bool,
) -> Tensor:
    result: Tensor = _on_device_of(a).gemm(
        Scaled(a, a_scale, a_granularity),
        Scaled(b, b_scale, b_granularity),
        c,
        bias,
        _NAMES[out_dtype],
        fast_accumulation,
    )
    return result


@_gemm.register_fake
def _(
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast_accumulation: bool,
) -> Tensor:
    m, _ = require_matrix("gemm", "a", a.shape)
    n, _ = require_matrix("gemm", "b", b.shape)
    return a.new_empty((m, n), dtype=out_dtype)


# `accumulate` stands for c = out: an op may not take what it mutates a second time.
@torch.library.custom_op(
    "octofold::gemm_out",
    mutates_args=("out",),
    schema=f"(Tensor(a!) out, {_OPERANDS}, bool accumulate, bool fast_accumulation) -> ()",
)
def _gemm_out(
    out: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    accumulate: bool,
    fast_accumulation: bool,
) -> None:
    _on_device_of(a).gemm_out(
        out,
        Scaled(a, a_scale, a_granularity),
        Scaled(b, b_scale, b_granularity),
        out if accumulate else c,
        bias,
        fast_accumulation,
    )


@_gemm_out.register_fake
def _(
    out: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_granularity: str,
    b: Tensor,
    b_scale: Tensor,
    b_granularity: str,
    c: Tensor | None,
    bias: Tensor | None,
    accumulate: bool,
    fast_accumulation: bool,
) -> None:
    return None


class TorchOperations:
    """The registered ops with the signatures of Operations."""

    def quantize(
        self,
        x: Tensor,
        dtype: str,
        granularity: str,
        power_of_two: bool | None,
        overflow: str,
        profile: str,
        transpose: bool,
    ) -> tuple[Tensor, Tensor]:
        data, scale = _quantize(
            x, _DTYPES[dtype], granularity, power_of_two, overflow, profile, transpose
        )
        return data, scale

    def dequantize(self, x: Scaled, dtype: str) -> Array:
        return _dequantize(*x, _DTYPES[dtype])

    def convert(self, x: Tensor, dtype: str, overflow: str) -> Array:
        return _convert(x, _DTYPES[dtype], overflow)

    def gemm(
        self,
        a: Scaled,
        b: Scaled,
        c: Tensor | None,
        bias: Tensor | None,
        out_dtype: str,
        fast_accumulation: bool,
    ) -> Array:
        return _gemm(*a, *b, c, bias, _DTYPES[out_dtype], fast_accumulation)

    def gemm_out(
        self,
        out: Tensor,
        a: Scaled,
        b: Scaled,
        c: Tensor | None,
        bias: Tensor | None,
        fast_accumulation: bool,
    ) -> None:
        in_place = c is out
        _gemm_out(out, *a, *b, None if in_place else c, bias, in_place, fast_accumulation)
