"""Work that a stream does by itself while all multiprocessors are taken: copies by a copy engine,
and words that it writes.

torch copies contiguous memory so, but columns by a kernel; hence the driver's own copy of two
dimensions.
"""

import ctypes
import functools
from typing import Final

import torch
from torch import Tensor

from .._core.errors import UnavailableError

_UNIFIED: Final = 4  # CU_MEMORYTYPE_UNIFIED: an address says itself whose memory it is


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_type", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_type", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(name: str, result: int) -> None:
    if result != 0:
        raise UnavailableError(f"GatheredProduct: {name}() failed with CUDA error {result}")


class MatrixCopy:
    """A copy of a matrix into another of its shape and strides, whose rows or columns are
    contiguous; to be made again and again."""

    def __init__(self, target: Tensor, source: Tensor) -> None:
        self._memory = target, source
        if target.stride(1) != 1:
            target, source = target.T, source.T
        height, width = target.shape
        size = target.element_size()
        self._request = _Copy2D(
            src_type=_UNIFIED,
            src=source.data_ptr(),
            src_pitch=source.stride(0) * size,
            dst_type=_UNIFIED,
            dst=target.data_ptr(),
            dst_pitch=target.stride(0) * size,
            width=width * size,
            height=height,
        )

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Behind what the stream has to do."""
        handle = ctypes.c_void_p(stream.cuda_stream)
        result = _driver().cuMemcpy2DAsync_v2(ctypes.byref(self._request), handle)
        _check("cuMemcpy2DAsync", result)


def set_flag(flags: Tensor, place: int, stream: torch.cuda.Stream) -> None:
    """flags[place] = 1, once all that was queued on `stream` before is done and can be seen."""
    address = flags.data_ptr() + place * flags.element_size()
    _check(
        "cuStreamWriteValue32",
        _driver().cuStreamWriteValue32_v2(
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(1),
            ctypes.c_uint(0),
        ),
    )
