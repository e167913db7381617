"""torch tensors in and out of the library. torch_ops.py makes the ops torch's own."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from .formats import BY_COLUMNS, DLPACK_NAMES
from .frameworks import ROW_ALIGNMENT, Framework, column_stride, reinterpret, row_stride
from .library import library, require, tvm_ffi
from .ops import row_count

require("torch", torch.__version__)

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "int32": torch.int32,
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
FLOAT8: Final = (DTYPES["e4m3"], DTYPES["e5m2"])

# Looked up once. What torch.autograd.graph.increment_version() calls, in half the time.
increment_version: Final = torch._C._increment_version
_empty_strided: Final = torch.empty_strided


def row_major(shape: Sequence[int]) -> Sequence[int]:
    """Strides of contiguous memory."""
    if len(shape) == 2:
        return shape[1] or 1, 1
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * (size or 1))
    return strides[::-1] if len(shape) else ()


def aligned_rows(shape: Sequence[int]) -> Sequence[int]:
    """Strides of codes on a GPU."""
    if len(shape) == 2:  # most
        return row_stride(shape[1]) or 1, 1
    return row_major((*shape[:-1], row_stride(shape[-1]))) if len(shape) else ()


def columns_first(shape: Sequence[int]) -> Sequence[int]:
    """Strides of 1x128 scales on a GPU: rows next to each other, then columns."""
    return *row_major(shape[:-1]), column_stride(row_count(shape))


class TorchFramework(Framework):
    """Tensors on the device of `like`, and of its kind. The library takes them as they are, with
    torch's current stream."""

    library_takes_arrays = True

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self.device = like.device

    def export(self, array: Tensor, writable: bool) -> "tvm_ffi.Tensor":
        tensor = array.detach()
        if tensor.dtype.itemsize > 1:
            return tvm_ffi.from_dlpack(tensor)
        # Not every torch exports FP8 by DLPack; all export bytes.
        name = NAMES.get(tensor.dtype)
        if name is None:
            raise BufferError(f"dtype {tensor.dtype} is unknown")
        return reinterpret(tvm_ffi.from_dlpack(tensor.view(torch.uint8)), name)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return self._like.new_empty(shape, dtype=DTYPES[dtype])

    def empty_codes(self, shape: Sequence[int], dtype: str) -> Tensor:
        if self.device.type != "cuda":
            return self.empty(shape, dtype)
        return self._like.new_empty_strided(shape, aligned_rows(shape), dtype=DTYPES[dtype])

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Tensor:
        if granularity not in BY_COLUMNS or self.device.type != "cuda":
            return self._like.new_empty(shape, dtype=torch.float32)
        return self._like.new_empty_strided(shape, columns_first(shape), dtype=torch.float32)

    def mark_written(self, array: Tensor) -> None:
        increment_version((array,))


class EagerTorchFramework(TorchFramework):
    """Used where torch need not know of allocations: new_empty() takes half as long again."""

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self._on_gpu = like.device.type == "cuda"

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        return _empty_strided(shape, row_major(shape), dtype=DTYPES[dtype], device=self.device)

    def empty_codes(self, shape: Sequence[int], dtype: str) -> Tensor:
        strides = aligned_rows(shape) if self._on_gpu else row_major(shape)
        return _empty_strided(shape, strides, dtype=DTYPES[dtype], device=self.device)

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Tensor:
        by_columns = self._on_gpu and granularity in BY_COLUMNS
        strides = columns_first(shape) if by_columns else row_major(shape)
        return _empty_strided(shape, strides, dtype=torch.float32, device=self.device)


class OlderTorchFramework(TorchFramework):
    """The framework for torch before 2.10: tensors are exported, and the stream is asked for."""

    library_takes_arrays = False

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        if like.device.type == "cuda":
            self.stream = int(torch.cuda.current_stream(like.device).cuda_stream)


def _library_takes_tensors() -> bool:
    """True if this torch gives tensors of all dtypes to tvm-ffi by DLPack's C interface."""
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return False
    try:
        for name, dtype in DTYPES.items():
            library.reinterpret(torch.empty(1, dtype=dtype), DLPACK_NAMES.get(name, name))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False
    return True


LIBRARY_TAKES_TENSORS: Final = _library_takes_tensors()
_FRAMEWORKS: Final[dict[torch.device, TorchFramework]] = {}


def torch_framework_of(tensor: Tensor) -> TorchFramework:
    """For tensors on the device of this one."""
    framework = _FRAMEWORKS.get(tensor.device)
    if framework is None:
        like = torch.empty(0, device=tensor.device)
        if not LIBRARY_TAKES_TENSORS:
            return OlderTorchFramework(like)  # as the stream is now
        framework = _FRAMEWORKS[tensor.device] = EagerTorchFramework(like)
    return framework


_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """True if two tensors have the same dtype, shape, device and bytes."""
    if (left.dtype, left.shape, left.device) != (right.dtype, right.shape, right.device):
        return False
    integers = _INTEGERS[left.dtype.itemsize]
    return torch.equal(left.view(integers), right.view(integers))


def with_aligned_rows(codes: Tensor) -> Tensor:
    """Codes [..., rows, cols] as they are; on a GPU a copy of those whose rows do not begin at
    multiples of 16 bytes, in which they do: products read nothing else by TMA."""
    if codes.device.type != "cuda" or codes.dim() < 2:
        return codes
    if codes.stride(-2) % ROW_ALIGNMENT == 0 and codes.storage_offset() % ROW_ALIGNMENT == 0:
        return codes
    framework = torch_framework_of(codes)
    return framework.empty_codes(codes.shape, NAMES[codes.dtype]).copy_(codes)


def moved(
    data: Tensor, scale: Tensor, granularity: str, device: str | int | torch.device
) -> tuple[Tensor, Tensor] | None:
    """Codes and scales on another device, None if they are there."""
    framework = TorchFramework(data.new_empty(0, device=torch.device(device)))
    if framework.device == data.device == scale.device:
        return None
    codes = framework.empty_codes(data.shape, NAMES[data.dtype]).copy_(data)
    return codes, framework.empty_scale(scale.shape, granularity).copy_(scale)
