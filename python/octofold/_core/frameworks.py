"""Arrays of NumPy, torch, CuPy and whatever else speaks DLPack, and their CUDA streams: in and out
of the library.

An array goes to the library as a tvm_ffi.Tensor on the same memory; results are allocated by the
caller's framework. torch and CuPy are used only where the caller has imported them.
"""

import ctypes
import importlib
import math
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Final, TypeAlias

import numpy as np

from .errors import UnsupportedError, invalid_argument
from .formats import BY_COLUMNS, DLPACK_NAMES, NUMPY_DTYPES
from .library import library, tvm_ffi


def imported(name: str) -> ModuleType | None:
    """A module that this process has imported, else None. Where another thread is at it, or has
    failed, this waits for the end: only then a module has its attributes."""
    try:
        return importlib.import_module(name) if sys.modules.get(name) is not None else None
    except ImportError:
        return None


def import_below(package: str, path: str) -> ModuleType:
    """The module `package.path`, each package above it first. Who asks for the module at once has
    its lock and waits for the package, while a thread that imports the package waits for the
    module: a deadlock to Python, which one of the two sees as an error."""
    for part in path.split("."):
        package = f"{package}.{part}"
        module = importlib.import_module(package)
    return module


class _Introduction(MetaPathFinder):
    """Tells torch, whichever is imported first, that torch.load() may build this type of a file
    that it does not trust. It finds nothing, but is asked at each import, so at those that follow
    torch.serialization in `import torch`, too. It stays: to leave the list while another thread
    goes through it would hide a finder from that thread."""

    def __init__(self, safe: type) -> None:
        self._safe = safe
        self._told: object = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        serialization: Any = sys.modules.get("torch.serialization")
        if serialization is not self._told and hasattr(serialization, "add_safe_globals"):
            self._told = serialization
            serialization.add_safe_globals([self._safe])


def introduce(safe: type) -> None:
    """A type to torch, now or as it is imported; once, if octofold is reloaded."""
    if any(isinstance(finder, _Introduction) for finder in sys.meta_path):
        return
    introduction = _Introduction(safe)
    sys.meta_path.insert(0, introduction)
    introduction.find_spec("torch", None)


StreamLike: TypeAlias = Annotated[Any, "stream"]
"""A cudaStream_t or CUstream as an int, or an object that has one: torch.cuda.Stream,
cupy.cuda.Stream, or anything with `__cuda_stream__`."""


def stream_handle(operation: str, stream: StreamLike) -> int:
    """The address of a stream."""
    handle: object = None
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):  # (version of the protocol, handle)
        protocol = stream.__cuda_stream__
        handle = (protocol() if callable(protocol) else protocol)[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    if not isinstance(handle, int) or not 0 <= handle < 2**63:
        raise invalid_argument(
            operation,
            "stream",
            "None, the address of a CUDA stream, or an object with __cuda_stream__, cuda_stream or "
            "ptr",
            repr(stream),
        )
    return handle


Array: TypeAlias = Annotated[Any, "array"]
"""A NumPy array, a torch tensor, or an object with `__dlpack__`."""

# NumPy and CuPy export no ml_dtypes arrays: they travel as integers of the same size.
_CARRIERS: Final[dict[int, type[np.unsignedinteger[Any]]]] = {1: np.uint8, 2: np.uint16}
_NUMPY_NAMES: Final = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
_DLPACK_CPU: Final = 1
_DLPACK_LEGACY_STREAM: Final = 1  # the legacy default stream, for which DLPack forbids 0
_DLPACK_READ_ONLY: Final = 1

NUMPY: Final = "a NumPy array"
TORCH: Final = "a torch tensor"
DLPACK: Final = "a DLPack tensor"
ANY: Final = "a NumPy array, a torch tensor or an object with __dlpack__"


class Framework:
    """How one operation's arrays travel."""

    stream: int | None = None
    """The stream of the work; None: that of the arrays' framework, which the library finds."""

    library_takes_arrays: bool = False
    """True if tvm-ffi's functions take the arrays themselves, faster than exported ones."""

    def export(self, array: Array, writable: bool) -> "tvm_ffi.Tensor":
        """A view of the array for the library. May raise BufferError."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """Memory for a result, which export() takes."""
        raise NotImplementedError

    def empty_codes(self, shape: Sequence[int], dtype: str) -> Array:
        """The same for FP8 codes, in the layout that is fastest on its device."""
        return self.empty(shape, dtype)

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Array:
        """The same for a scale tensor."""
        return self.empty(shape, "float32")

    def deliver(self, array: Array) -> Array:
        """The result as the caller gets it."""
        return array

    def mark_written(self, array: Array) -> None:
        """Says to the framework that the caller's array has changed."""


def column_stride(rows: int) -> int:
    """The column stride of 1x128 scales on a GPU: rows side by side, columns 16-byte aligned."""
    return (rows + 3) // 4 * 4


ROW_ALIGNMENT = 16
"""The alignment of rows of codes, in bytes, as TMA and loads of 16 bytes want it."""


def row_stride(cols: int) -> int:
    """The stride of rows of codes on a GPU: each begins with a sector of the cache, 32 bytes. With
    rows at odd multiples of 16 bytes products took up to 1.3 times as long (docs/notes/products.md,
    "Rows of codes")."""
    return (cols + 31) // 32 * 32  # without a branch: torch.compile's sizes are symbols


class NumPyFramework(Framework):
    """NumPy arrays, ml_dtypes' types among them."""

    def export(self, array: Array, writable: bool) -> "tvm_ffi.Tensor":
        name = None
        if array.dtype.type.__module__ != np.__name__:
            name = _NUMPY_NAMES.get(array.dtype)
            if name is None:
                raise BufferError(f"dtype {array.dtype} is unknown")
            array = array.view(_CARRIERS[array.dtype.itemsize])
        if not array.flags.writeable:
            if writable:
                raise BufferError("it is read-only")
            array = _writable_alias(array)
        tensor = _import_dlpack(array, writable=False)
        return tensor if name is None else reinterpret(tensor, name)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        return np.empty(shape, NUMPY_DTYPES[dtype])


NUMPY_FRAMEWORK: Final = NumPyFramework()


class DLPackFramework(Framework):
    """Everything else, on the CPU or on a GPU. Results on the CPU lie in NumPy's memory and are
    handed to the arrays' own namespace, or stay tvm_ffi.Tensor where they have none or it does not
    know the dtype."""

    always_writable = False

    def __init__(self, namespace: ModuleType | None, on_cpu: bool, stream: int | None) -> None:
        self._namespace = namespace
        self._on_cpu = on_cpu
        self.stream = stream

    def export(self, array: Array, writable: bool) -> "tvm_ffi.Tensor":
        if isinstance(array, tvm_ffi.Tensor):
            return array
        ask = writable and not self.always_writable
        if self._on_cpu:
            return _import_dlpack(array, ask)
        # The producer orders its work before ours, if it works on another stream.
        return _import_dlpack(array, ask, stream=self.stream or _DLPACK_LEGACY_STREAM)

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        if not self._on_cpu:
            raise UnsupportedError(
                "octofold allocates results for NumPy and CuPy arrays, torch tensors and DLPack "
                "tensors on the CPU; elsewhere gemm() takes them as 'out'"
            )
        return NUMPY_FRAMEWORK.export(NUMPY_FRAMEWORK.empty(shape, dtype), writable=True)

    def deliver(self, array: Array) -> Array:
        if self._namespace is None:
            return array
        try:
            return self._namespace.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return array


class CuPyFramework(DLPackFramework):
    """CuPy's arrays. It has no FP8 (nor, before version 14, bfloat16): such results are
    tvm_ffi.Tensor in CuPy's memory."""

    always_writable = True

    def __init__(self, cupy: ModuleType, device: int, stream: int | None) -> None:
        if stream is None:
            stream = int(cupy.cuda.get_current_stream(device).ptr)
        super().__init__(cupy, on_cpu=False, stream=stream)
        self._cupy = cupy
        self._device = device

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        return self._rows(shape, shape[-1] if len(shape) else 1, dtype)

    def empty_codes(self, shape: Sequence[int], dtype: str) -> Array:
        return self._rows(shape, row_stride(shape[-1]) if len(shape) else 1, dtype)

    def _rows(self, shape: Sequence[int], stride: int, dtype: str) -> Array:
        numpy_dtype = NUMPY_DTYPES[dtype]
        known = numpy_dtype.type.__module__ == np.__name__
        carrier = numpy_dtype if known else np.dtype(_CARRIERS[numpy_dtype.itemsize])
        with self._cupy.cuda.Device(self._device):
            array = self._cupy.empty((*shape[:-1], stride), carrier)
        array = array[..., : shape[-1]] if len(shape) else array.reshape(())
        return array if known else reinterpret(self.export(array, writable=True), dtype)

    def empty_scale(self, shape: Sequence[int], granularity: str) -> Array:
        if granularity not in BY_COLUMNS:
            return self.empty(shape, "float32")
        *leading, cols = shape
        rows = math.prod(leading)
        scales = self.empty((cols, column_stride(rows)), "float32")[:, :rows]
        return scales.reshape(cols, *leading).transpose(*range(1, len(shape)), 0)

    def deliver(self, array: Array) -> Array:
        return array if isinstance(array, self._cupy.ndarray) else super().deliver(array)


def reinterpret(tensor: "tvm_ffi.Tensor", dtype: str) -> "tvm_ffi.Tensor":
    """The same memory as another dtype of the same size: Octofold's, or an integer."""
    view: tvm_ffi.Tensor = library.reinterpret(tensor, DLPACK_NAMES.get(dtype, dtype))
    return view


def _writable_alias(array: Array) -> Array:
    """A writable view of a read-only NumPy array, which NumPy before 2.1 does not export."""
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array))


def _import_dlpack(array: Array, writable: bool, **options: int) -> "tvm_ffi.Tensor":
    try:
        capsule = array.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = array.__dlpack__(**options)
    if writable and not _may_be_written(capsule):
        raise BufferError("it is read-only, or exported without a word on whether it is")
    return tvm_ffi.from_dlpack(capsule)


def _may_be_written(capsule: Any) -> bool:
    """True if the versioned protocol says so. The unversioned one has no word for it, and JAX
    exports its immutable arrays by it."""
    if "dltensor_versioned" not in repr(capsule):
        return False
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = address(capsule, b"dltensor_versioned")
    # DLManagedTensorVersioned: the version (two uint32), two pointers, then its flags.
    flags = ctypes.c_uint64.from_address(managed + 8 + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    return not flags & _DLPACK_READ_ONLY


def is_torch(array: Array) -> bool:
    """True if this is a torch tensor, without importing torch. While another thread imports it,
    there may be no such type yet, and then no tensor either."""
    return isinstance(array, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_on_cpu(array: Array) -> bool:
    """True if a NumPy array or a DLPack tensor lies in the CPU's memory."""
    return isinstance(array, np.ndarray) or array.__dlpack_device__()[0] == _DLPACK_CPU


def _kind(array: Array) -> str | None:
    if is_torch(array):
        return TORCH
    if isinstance(array, np.ndarray):
        return NUMPY
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return DLPACK
    return None


def common_kind(operation: str, arguments: Sequence[str], arrays: Sequence[Array | None]) -> str:
    """NUMPY, TORCH or DLPACK: of arrays (None: not given) that have to come from one framework.
    `arguments` are their names."""
    first_kind = None
    for argument, array in zip(arguments, arrays, strict=False):
        if first_kind is not None and (array is None or type(array) is type(arrays[0])):
            continue
        kind = _kind(array)
        if kind is None:
            got = type(array)
            raise invalid_argument(operation, argument, ANY, f"{got.__module__}.{got.__qualname__}")
        if first_kind not in (None, kind):
            raise invalid_argument(
                operation, argument, f"{first_kind} as is '{arguments[0]}'", kind
            )
        first_kind = kind
    assert first_kind is not None
    return first_kind


def framework_of(kind: str, arrays: Sequence[Array | None], stream: int | None) -> Framework:
    """For NumPy arrays and DLPack tensors; torch's are handled by torch.py."""
    if kind == NUMPY:
        return NUMPY_FRAMEWORK
    given = [array for array in arrays if array is not None]
    namespace: ModuleType | None = None
    for array in given:
        if namespace is None and hasattr(array, "__array_namespace__"):
            namespace = array.__array_namespace__()
    devices = [array.__dlpack_device__() for array in given]
    if all(device_type == _DLPACK_CPU for device_type, _ in devices):
        return DLPackFramework(namespace, on_cpu=True, stream=None)
    cupy = imported("cupy")
    if cupy is not None and any(isinstance(array, getattr(cupy, "ndarray", ())) for array in given):
        return CuPyFramework(cupy, devices[0][1], stream)
    return DLPackFramework(namespace, on_cpu=False, stream=stream)
