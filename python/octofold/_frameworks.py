"""Arrays of NumPy, torch and whatever else speaks DLPack: in and out of the library.

An array goes to the library as a tvm_ffi.Tensor on the same memory; results are allocated by the
caller's framework. torch is used only where the caller has imported it.
"""

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import tvm_ffi

from ._dtypes import NUMPY_DTYPES
from ._library import library
from .errors import UnsupportedError, invalid_argument

Array: TypeAlias = Any
"""A NumPy array, a torch tensor, or an object with `__dlpack__`."""

# NumPy exports no ml_dtypes arrays: they travel as integers of the same size.
_CARRIERS: Final[dict[int, type[np.unsignedinteger[Any]]]] = {1: np.uint8, 2: np.uint16}
_NUMPY_NAMES: Final = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
_DLPACK_CPU: Final = 1


class Framework(Protocol):
    """How one operation's arrays travel."""

    def export(self, array: Array, writable: bool) -> tvm_ffi.Tensor:
        """A view of the array for the library. May raise BufferError."""

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """Memory for a result, which export() takes."""

    def deliver(self, array: Array) -> Array:
        """The result as the caller gets it."""


class NumPyFramework:
    """NumPy arrays, ml_dtypes' types among them."""

    def export(self, array: Array, writable: bool) -> tvm_ffi.Tensor:
        if array.dtype.type.__module__ == np.__name__:
            return _import_dlpack(array, writable)
        name = _NUMPY_NAMES.get(array.dtype)
        if name is None:
            raise BufferError(f"dtype {array.dtype} is unknown")
        carrier = array.view(_CARRIERS[array.dtype.itemsize])
        return reinterpret(_import_dlpack(carrier, writable), name)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        return np.empty(shape, NUMPY_DTYPES[dtype])

    def deliver(self, array: Array) -> Array:
        return array


class DLPackFramework:
    """Everything else. Results lie in NumPy's memory and are handed to the arrays' own namespace,
    or stay tvm_ffi.Tensor where they have none or it does not know the dtype."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._namespace: ModuleType | None = None
        for array in arrays:
            if self._namespace is None and hasattr(array, "__array_namespace__"):
                self._namespace = array.__array_namespace__()
        self._on_cpu = all(array.__dlpack_device__()[0] == _DLPACK_CPU for array in arrays)

    def export(self, array: Array, writable: bool) -> tvm_ffi.Tensor:
        return array if isinstance(array, tvm_ffi.Tensor) else _import_dlpack(array, writable)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        if not self._on_cpu:
            raise UnsupportedError(
                "octofold allocates results for NumPy arrays, torch tensors and DLPack tensors on "
                "the CPU only"
            )
        numpy = NumPyFramework()
        return numpy.export(numpy.empty(shape, dtype), writable=True)

    def deliver(self, array: Array) -> Array:
        if self._namespace is None:
            return array
        try:
            return self._namespace.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return array


def reinterpret(tensor: tvm_ffi.Tensor, dtype: str) -> tvm_ffi.Tensor:
    """The same memory as another dtype of the same size."""
    view: tvm_ffi.Tensor = library.reinterpret(tensor, dtype)
    return view


def _import_dlpack(array: Array, writable: bool) -> tvm_ffi.Tensor:
    if writable:
        # The unversioned protocol cannot mark memory as read-only, so that a producer refuses to
        # export what must not be written.
        return tvm_ffi.from_dlpack(array.__dlpack__())
    try:
        return tvm_ffi.from_dlpack(array.__dlpack__(max_version=(1, 1)))
    except TypeError:  # a producer from before DLPack 1.0
        return tvm_ffi.from_dlpack(array.__dlpack__())


def is_torch(array: Array) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _kind(array: Array) -> str | None:
    if isinstance(array, np.ndarray):
        return "a NumPy array"
    if is_torch(array):
        return "a torch tensor"
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return "a DLPack tensor"
    return None


def check_same_framework(operation: str, arrays: Mapping[str, Array | None]) -> None:
    """All arrays (None: not given) come from one framework."""
    first_kind: str | None = None
    first_argument = ""
    for argument, array in arrays.items():
        if array is None:
            continue
        kind = _kind(array)
        if kind is None:
            raise invalid_argument(
                operation,
                argument,
                "a NumPy array, a torch tensor or an object with __dlpack__",
                f"{type(array).__module__}.{type(array).__qualname__}",
            )
        if first_kind is None:
            first_kind, first_argument = kind, argument
        elif kind != first_kind:
            raise invalid_argument(
                operation, argument, f"{first_kind} as is '{first_argument}'", kind
            )


def framework_of(arrays: Sequence[Array]) -> Framework:
    """For NumPy arrays and DLPack tensors; torch's are handled by _torch.py."""
    return NumPyFramework() if isinstance(arrays[0], np.ndarray) else DLPackFramework(arrays)
