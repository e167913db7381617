"""Streams as arguments, and CuPy's arrays: what can be tested of them without a GPU."""

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import octofold
import pytest
import tvm_ffi


def operand():
    return octofold.quantize(np.ones((3, 300), np.float32))


class Protocol:
    def __cuda_stream__(self):
        return (0, 77)


class ProtocolAsProperty:
    __cuda_stream__ = (0, 77)


STREAMS = {
    "address": 77,
    "protocol": Protocol(),
    "protocol as a property": ProtocolAsProperty(),
    "torch": SimpleNamespace(cuda_stream=77),
    "cupy": SimpleNamespace(ptr=77),
}
CALLS = {
    "quantize": lambda stream: octofold.quantize(np.ones((3, 4), np.float32), stream=stream),
    "cast": lambda stream: octofold.ops.cast(
        np.ones((3, 4), np.float32), rows="1x128", columns="sums", stream=stream
    ),
    "dequantize": lambda stream: operand().dequantize(stream=stream),
    "convert_dtype": lambda stream: octofold.ops.convert_dtype(
        np.ones(3, np.float32), "e4m3", stream=stream
    ),
    "transpose": lambda stream: octofold.ops.transpose(operand().data, stream=stream),
    "gemm": lambda stream: octofold.gemm(operand(), operand(), stream=stream),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_the_cpu_looks_at_no_stream(call, stream):
    call(stream)


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("stream", ["77", -1, 2**63, True, 7.5, SimpleNamespace(ptr=None)], ids=str)
def test_what_is_no_stream(operation, stream):
    message = f"{operation}: argument 'stream': expected None, the address of a CUDA stream, or"
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        CALLS[operation](stream)


class FakeCuPyArray:
    """A part of cupy.ndarray, as much as DLPack and octofold need, in host memory. It has no FP8,
    and before version 14 it is exported by the unversioned protocol."""

    def __init__(self, array):
        self.array = array
        self.streams = []

    def __dlpack_device__(self):
        return (2, 3)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __getitem__(self, index):
        return FakeCuPyArray(self.array[index])

    def reshape(self, *shape):
        view = self.array.reshape(*shape)
        assert np.shares_memory(view, self.array)
        return FakeCuPyArray(view)

    def transpose(self, *axes):
        return FakeCuPyArray(self.array.transpose(*axes))

    shape = property(lambda self: self.array.shape)
    strides = property(lambda self: self.array.strides)
    dtype = property(lambda self: self.array.dtype)


class FakeCuPy:
    ndarray = FakeCuPyArray
    devices = ()
    cuda = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=700 + device))

    @staticmethod
    def empty(shape, dtype):
        return FakeCuPyArray(np.empty(shape, dtype))

    @staticmethod
    def from_dlpack(tensor):
        if "float8" in str(tensor.dtype):
            raise BufferError("no FP8")
        return FakeCuPyArray(np.from_dlpack(tensor))


FakeCuPy.__name__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    """Its `devices` are those on which memory was allocated."""
    devices = []

    @contextlib.contextmanager
    def device(index):
        devices.append(index)
        yield

    monkeypatch.setattr(FakeCuPy, "devices", devices)
    monkeypatch.setattr(FakeCuPy.cuda, "Device", device, raising=False)
    monkeypatch.setitem(sys.modules, "cupy", FakeCuPy)
    return FakeCuPy


def test_cupy_arrays(cupy, rng):
    x = rng.normal(0, 1, (6, 300)).astype(np.float32)
    given = FakeCuPyArray(x)
    cast, expected = octofold.quantize(given), octofold.quantize(x)
    assert given.streams == [703]  # the current one of the array's device
    assert set(cupy.devices) == {3}
    assert isinstance(cast.scale, FakeCuPyArray)
    np.testing.assert_array_equal(cast.scale.array, expected.scale)
    assert cast.scale.strides == (4, 4 * 8)  # rows next to each other, columns 16-byte aligned
    leading = octofold.quantize(FakeCuPyArray(x.reshape(2, 3, 300)))
    np.testing.assert_array_equal(leading.scale.array, expected.scale.reshape(2, 3, 3))
    assert leading.scale.strides == (4 * 3, 4, 4 * 8)
    assert isinstance(cast.data, tvm_ffi.Tensor)
    assert cast.data.dtype == "float8_e4m3fn"

    product = octofold.gemm(cast, cast, out_dtype="float32", stream=77)
    assert isinstance(product, FakeCuPyArray)
    assert cast.scale.streams[-1] == 77
    np.testing.assert_array_equal(
        product.array, octofold.gemm(expected, expected, out_dtype="float32")
    )
    out = FakeCuPyArray(np.empty((6, 6), np.float32))
    assert octofold.gemm(cast, cast, out=out) is out
    np.testing.assert_array_equal(out.array, product.array)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "128x128"])
def test_scales_of_other_granularities_are_row_major(cupy, granularity, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    cast = octofold.quantize(FakeCuPyArray(x), granularity)
    assert cast.scale.array.flags.c_contiguous
    np.testing.assert_array_equal(cast.scale.array, octofold.quantize(x, granularity).scale)
