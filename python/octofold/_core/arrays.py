"""Operations on arrays of any framework: compare them, move them."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .errors import invalid_argument
from .formats import NUMPY_DTYPES, SPELLINGS
from .frameworks import (
    Array,
    CuPyFramework,
    Framework,
    StreamLike,
    common_kind,
    framework_of,
    imported,
    is_on_cpu,
    is_torch,
    reinterpret,
    stream_handle,
)
from .library import tvm_ffi

Pair = tuple[Array, Array]


def same_bytes(left: Array, right: Array) -> bool:
    """True if two arrays of one framework have the same dtype, shape, device and bytes."""
    if is_torch(left) or is_torch(right):
        from . import torch

        return is_torch(left) and is_torch(right) and torch.same_bytes(left, right)
    if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        return False
    return bool(np.array_equal(_integers(left), _integers(right)))


def moved(data: Array, scale: Array, granularity: str, device: Any) -> Pair | None:
    """Codes and scales on another device; None if they are there."""
    if is_torch(data):
        from . import torch

        return torch.moved(data, scale, granularity, device)
    if is_on_cpu(data):
        if device == "cpu":
            return None
        expected = "'cpu', where arrays of this framework stay"
        raise invalid_argument("ScaledTensor.to", "device", expected, repr(device))
    cupy = imported("cupy")
    if cupy is None or not (device == "cpu" or isinstance(device, int)):
        expected = "'cpu' or the number of a GPU, for CuPy's arrays"
        raise invalid_argument("ScaledTensor.to", "device", expected, repr(device))
    if device == "cpu":
        dtype = NUMPY_DTYPES[SPELLINGS[str(data.dtype)]]
        return _integers(data).view(dtype), cupy.asnumpy(scale)
    if data.__dlpack_device__()[1] == device:
        return None
    framework = CuPyFramework(cupy, device, None)
    new = framework.empty_codes(data.shape, SPELLINGS[str(data.dtype)])
    new_scale = framework.empty_scale(scale.shape, granularity)
    _on_gpu(cupy, new)[...] = _on_gpu(cupy, data)
    new_scale[...] = scale
    return new, new_scale


def framework_for(
    operation: str, argument: str, array: Array, stream: StreamLike | None
) -> Framework:
    """The framework of an array, which allocates beside it, for an operation on this stream."""
    if is_torch(array):
        from . import torch

        return torch.TorchFramework(array)
    kind = common_kind(operation, (argument,), (array,))
    handle = None if stream is None else stream_handle(operation, stream)
    return framework_of(kind, (array,), handle)


def scratch(
    operation: str, argument: str, array: Array, shape: Sequence[int], stream: StreamLike | None
) -> Array:
    """Float32 memory of the array's framework and device, for an operation on this stream."""
    return framework_for(operation, argument, array, stream).empty(shape, "float32")


def _integers(array: Array) -> "np.ndarray[Any, Any]":
    """The elements as integers of their size, on the CPU."""
    if isinstance(array, np.ndarray):
        return array.view(f"u{array.dtype.itemsize}")
    if is_on_cpu(array):
        name = SPELLINGS[str(array.dtype)]
        tensor = array if isinstance(array, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(array)
        bits = 8 * NUMPY_DTYPES[name].itemsize
        return np.from_dlpack(reinterpret(tensor, f"uint{bits}"))
    cupy: Any = imported("cupy")
    integers: np.ndarray[Any, Any] = cupy.asnumpy(_on_gpu(cupy, array))
    return integers


def _on_gpu(cupy: ModuleType, array: Array) -> Array:
    """An array in CuPy's memory as one of CuPy, which has no FP8: as bytes."""
    if isinstance(array, tvm_ffi.Tensor):
        return cupy.from_dlpack(reinterpret(array, "uint8"))
    return array.view("uint32")
