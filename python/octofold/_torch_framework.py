"""torch tensors in and out of the library."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ._frameworks import column_stride, reinterpret
from ._library import library
from ._operations import Operations
from ._tvm_ffi import tvm_ffi

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def _library_takes_tensors() -> bool:
    """Whether this torch gives tensors of all dtypes to tvm-ffi by DLPack's C interface, with its
    current stream: 2.10 and later do."""
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return False
    try:
        for name, dtype in DTYPES.items():
            library.reinterpret(torch.empty(1, dtype=dtype), name)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return False
    return True


_LIBRARY_TAKES_TENSORS: Final = _library_takes_tensors()


class TorchFramework:
    """Tensors on one device."""

    library_takes_arrays = _LIBRARY_TAKES_TENSORS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def stream(self) -> int | None:
        if self.library_takes_arrays or self._device.type != "cuda":
            return None
        return int(torch.cuda.current_stream(self._device).cuda_stream)

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
        return torch.empty(*shape, dtype=DTYPES[dtype], device=self._device)

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Tensor:
        strides = scale_strides(granularity, shape, self._device)
        return torch.empty_strided(shape, strides, dtype=torch.float32, device=self._device)

    def deliver(self, array: Tensor) -> Tensor:
        return array

    def mark_written(self, array: Tensor) -> None:
        torch.autograd.graph.increment_version(array)


def scale_strides(granularity: str, shape: Sequence[int], device: torch.device) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    rows, cols = shape
    if granularity == "1x128" and device.type == "cuda":
        return (1, column_stride(rows))
    return (cols, 1)


_OPERATIONS: Final[dict[torch.device, Operations]] = {}


def on_device_of(tensor: Tensor) -> Operations:
    operations = _OPERATIONS.get(tensor.device)
    if operations is None:
        operations = _OPERATIONS[tensor.device] = Operations(TorchFramework(tensor.device))
    return operations
