"""Tensors on wrong devices, memory that casts lay out there, and CuPy's arrays."""

import numpy as np
import octofold
import pytest

from tests.gpu.gpu_support import Held, needs, needs_gpu, normal, operands, torch

pytestmark = needs_gpu


def on_cpu(x):
    return octofold.ScaledTensor(x.data.cpu(), x.scale.cpu(), x.granularity)


def test_operands_on_different_devices(generator):
    a, b = operands(generator, 64, 96, 256)
    mixed = octofold.ScaledTensor(b.data, b.scale.cpu(), b.granularity)
    host, amax = torch.empty(64, 96), octofold.ops.Target("tensor", amax=torch.ones(1))
    for argument, call in (
        ("'b'", lambda: octofold.gemm(a, on_cpu(b))),
        ("'b'", lambda: octofold.gemm(on_cpu(a), b)),
        (r"'b\.scale'", lambda: octofold.gemm(a, mixed)),
        ("'out'", lambda: octofold.gemm(a, b, out=host)),
        ("'c'", lambda: octofold.gemm(a, b, c=host)),
        ("'bias'", lambda: octofold.gemm(a, b, bias=host[0])),
        (r"'x\.scale'", mixed.dequantize),
        (r"rows\.amax", lambda: octofold.ops.cast(normal(generator, 16, 16), rows=amax)),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=argument):
            call()


@needs("products")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device(generator):
    """The result is on the operands' device, which need not be the current one."""
    a, b = operands(generator, 200, 300, 512)
    moved = [octofold.ScaledTensor(x.data.to(1), x.scale.to(1), x.granularity) for x in (a, b)]
    out = octofold.gemm(*moved)
    assert out.device.index == 1
    assert torch.equal(out.cpu(), octofold.gemm(a, b).cpu())
    assert torch.cuda.current_device() == 0
    with pytest.raises(octofold.InvalidArgumentError, match="'b'"):
        octofold.gemm(a, moved[1])


def test_gpu_is_listed():
    gpu = octofold.info().gpus[torch.cuda.current_device()]
    assert gpu.name == torch.cuda.get_device_name()
    assert gpu.multiprocessors == torch.cuda.get_device_properties().multi_processor_count


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@needs("products")
def test_cupy_arrays(cupy, rng):
    x = rng.normal(0, 1, (200, 300)).astype(np.float32)
    w = rng.normal(0, 1, (136, 300)).astype(np.float32)
    casts = [octofold.quantize(cupy.asarray(array)) for array in (x, w)]
    assert isinstance(casts[0].scale, cupy.ndarray)
    product = octofold.gemm(*casts, out_dtype="float32")
    assert isinstance(product, cupy.ndarray)
    expected = octofold.gemm(octofold.quantize(x), octofold.quantize(w), out_dtype="float32")
    error = np.linalg.norm(cupy.asnumpy(product) - expected)
    assert error <= 3e-4 * np.linalg.norm(expected)

    out = cupy.full((200, 136), cupy.nan, cupy.float32)
    assert octofold.gemm(*casts, out=out) is out
    cupy.testing.assert_array_equal(out, product)


@needs("products")
def test_cupy_streams(cupy, rng):
    """The current CuPy stream is the one that is used."""
    x = cupy.asarray(rng.normal(0, 1, (512, 1024)).astype(np.float32))
    expected = octofold.gemm(octofold.quantize(x), octofold.quantize(x), out_dtype="float32")
    cupy.cuda.Device().synchronize()
    with Held(torch.cuda.default_stream()), cupy.cuda.Stream(non_blocking=True) as stream:
        cast = octofold.quantize(x)
        product = octofold.gemm(cast, cast, out_dtype="float32")
        stream.synchronize()
    cupy.cuda.Device().synchronize()
    cupy.testing.assert_array_equal(product, expected)


def test_casts_are_laid_out_for_gemm(generator):
    for rows in (1, 6, 130, 256):
        cast = octofold.quantize(normal(generator, rows, 500))
        assert cast.scale.stride() == (1, (rows + 3) // 4 * 4)
        assert cast.data.stride() == (512, 1)
        host = octofold.quantize(normal(generator, rows, 500).cpu())
        moved = host.to("cuda")
        assert moved.data.stride() == (512, 1)
        assert moved.scale.stride() == (1, (rows + 3) // 4 * 4)
        assert moved.to("cpu").data.is_contiguous()
        assert moved.to("cpu").equals(host)
    both = octofold.ops.cast(normal(generator, 130, 300), rows="1x128", transposed="1x128")[:2]
    assert [x.scale.stride() for x in both] == [(1, 132), (1, 300)]
    assert [x.data.stride() for x in both] == [(320, 1), (160, 1)]
