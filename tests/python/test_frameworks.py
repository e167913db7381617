"""Arrays of any framework, and results in kind."""

import numpy as np
import octofold
import pytest
import tvm_ffi

from tests.python import reference

# The array libraries of these tests are made of NumPy arrays, also of read-only ones.
exports_read_only_arrays = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0",
    reason="NumPy before 2.1 does not export what its own from_dlpack() gives, which is read-only",
)


def tvm_tensor(array):
    return tvm_ffi.from_dlpack(array)


class ArrayNamespace:
    """A small array library of the array-API kind, which knows no FP8."""

    class Array:
        def __init__(self, tensor):
            self.numpy = np.from_dlpack(tensor)  # raises for dtypes that NumPy has not

        def __array_namespace__(self):
            return ArrayNamespace

        def __dlpack__(self, **options):
            return self.numpy.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.numpy.__dlpack_device__()

    from_dlpack = Array


class OldArray(ArrayNamespace.Array):
    """From before DLPack 1.0: takes no max_version."""

    def __dlpack__(self):
        return self.numpy.__dlpack__()


class DeviceArray(ArrayNamespace.Array):
    """Says that it lies on a GPU, and remembers for which streams it was exported."""

    streams = ()

    def __dlpack__(self, stream=None, **options):
        self.streams += (stream,)
        return super().__dlpack__(**options)

    def __dlpack_device__(self):
        return (2, 0)


def matrix(rng):
    return rng.normal(0, 1, (6, 300)).astype(np.float32)


def test_tvm_ffi_tensors(rng):
    x = matrix(rng)
    expected = octofold.quantize(x)
    cast = octofold.quantize(tvm_tensor(x))
    assert isinstance(cast.data, tvm_ffi.Tensor)
    assert cast.data.dtype == "float8_e4m3fn"
    np.testing.assert_array_equal(np.from_dlpack(cast.scale), expected.scale)
    np.testing.assert_array_equal(np.from_dlpack(cast.dequantize()), expected.dequantize())
    out = tvm_tensor(np.empty((6, 6), np.float32))
    assert octofold.gemm(cast, cast, out=out) is out
    np.testing.assert_array_equal(
        np.from_dlpack(out), octofold.gemm(expected, expected, out_dtype="float32")
    )


@exports_read_only_arrays
@pytest.mark.parametrize("kind", [ArrayNamespace.Array, OldArray])
def test_array_api_objects(kind, rng):
    x = matrix(rng)
    cast = octofold.quantize(kind(x))
    assert isinstance(cast.scale, ArrayNamespace.Array)
    assert isinstance(cast.data, tvm_ffi.Tensor)  # FP8, which the namespace does not know
    product = octofold.gemm(cast, cast, out_dtype="float32")
    assert isinstance(product, ArrayNamespace.Array)
    expected = octofold.quantize(x)
    np.testing.assert_array_equal(
        product.numpy, octofold.gemm(expected, expected, out_dtype="float32")
    )


class UnversionedArray(ArrayNamespace.Array):
    """An array like JAX's: immutable, and exported by the protocol that has no word for it."""

    def __dlpack__(self, max_version=None, **options):
        return self.numpy.__dlpack__(**options)


def read_only(array):
    array.numpy.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "out",
    [
        read_only(ArrayNamespace.Array(np.empty((6, 6), np.float32))),
        UnversionedArray(np.empty((6, 6), np.float32)),
        OldArray(np.empty((6, 6), np.float32)),
    ],
    ids=lambda out: type(out).__name__,
)
def test_output_that_may_be_read_only_is_refused(out, rng):
    cast = octofold.quantize(tvm_tensor(matrix(rng)))
    before = out.numpy.copy()
    with pytest.raises(octofold.InvalidArgumentError, match="'out': expected a writable tensor"):
        octofold.gemm(cast, cast, out=out)
    np.testing.assert_array_equal(out.numpy, before)


def test_jax_arrays(rng, monkeypatch):
    """JAX's arrays are inputs and results, never written. DLPack is used, without octofold.jax."""
    jax = pytest.importorskip("jax")
    monkeypatch.setattr("octofold._core.calls.CALLERS", {})
    x = matrix(rng)
    expected = octofold.quantize(x)
    cast = octofold.quantize(jax.numpy.asarray(x))
    product = octofold.gemm(cast, cast, out_dtype="float32")
    assert isinstance(product, jax.Array)
    np.testing.assert_array_equal(product, octofold.gemm(expected, expected, out_dtype="float32"))
    out = jax.numpy.zeros((6, 6))
    alias = out + 0
    with pytest.raises(octofold.InvalidArgumentError, match="'out': expected a writable tensor"):
        octofold.gemm(cast, cast, out=out)
    np.testing.assert_array_equal(out, alias)


@exports_read_only_arrays
def test_who_cannot_allocate_on_a_gpu_gives_the_output(rng):
    x = matrix(rng)
    with pytest.raises(octofold.UnsupportedError, match=r"allocates results for .* as 'out'"):
        octofold.quantize(DeviceArray(x))
    cast = octofold.quantize(tvm_tensor(x))
    on_gpu = octofold.ScaledTensor(cast.data, DeviceArray(np.from_dlpack(cast.scale)), "1x128")
    out = DeviceArray(np.empty((6, 6), np.float32))
    assert octofold.gemm(on_gpu, on_gpu, out=out) is out
    expected = octofold.quantize(x)
    np.testing.assert_array_equal(out.numpy, octofold.gemm(expected, expected, out_dtype="float32"))


@exports_read_only_arrays
@pytest.mark.parametrize(("stream", "exported_for"), [(None, 1), (0, 1), (77, 77)])
def test_producers_order_their_work_before_ours(stream, exported_for, rng):
    """By DLPack's numbers, in which 1 is the legacy default stream."""
    cast = octofold.quantize(tvm_tensor(matrix(rng)))
    on_gpu = octofold.ScaledTensor(cast.data, DeviceArray(np.from_dlpack(cast.scale)), "1x128")
    out = DeviceArray(np.empty((6, 6), np.float32))
    octofold.gemm(on_gpu, on_gpu, out=out, stream=stream)
    assert out.streams == (exported_for,)
    assert set(on_gpu.scale.streams) == {exported_for}


def test_mixed_frameworks_are_refused(rng):
    x = matrix(rng)
    a, b = octofold.quantize(x), octofold.quantize(tvm_tensor(x))
    with pytest.raises(
        octofold.InvalidArgumentError,
        match="gemm: argument 'b': expected a NumPy array as is 'a', got a DLPack tensor",
    ):
        octofold.gemm(a, b)
    mixed = octofold.ScaledTensor(a.data, b.scale, "1x128")
    with pytest.raises(octofold.InvalidArgumentError, match=r"'x\.scale': expected a NumPy array"):
        mixed.dequantize()


def test_results_keep_their_memory_alive(rng):
    x = matrix(rng)
    expected = octofold.quantize(x).data.view(np.uint8)
    data = octofold.quantize(tvm_tensor(x.copy())).data
    trash = [np.full((6, 300), 0xAA, np.uint8) for _ in range(100)]
    view = octofold.ops.convert_dtype(data, "float32")
    np.testing.assert_array_equal(np.from_dlpack(view), reference.decode(expected, "e4m3"))
    assert len(trash) == 100
