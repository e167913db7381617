"""Transposes of FP8 codes on the GPU: the bytes that torch gives."""

import itertools

import octofold
import pytest
from octofold._core.frameworks import row_stride

from tests.gpu.gpu_support import DEVICE, DTYPES, ON_GPU, bits, torch

SIZES = (1, 15, 16, 128, 130, 144, 257, 400)


def codes(*shape, dtype="e4m3"):
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE).view(DTYPES[dtype])


def check(x):
    out = octofold.ops.transpose(x)
    assert out.dtype is x.dtype
    assert not ON_GPU or out.stride(-2) == max(row_stride(out.shape[-1]), 1)
    assert torch.equal(bits(out), bits(x).mT)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_of_all_sizes(dtype):
    for rows, cols in itertools.product(SIZES, SIZES):
        check(codes(rows, cols, dtype=dtype))
    for empty in ((0, 5), (5, 0), (0, 3, 4), (3, 0, 4)):
        check(codes(*empty, dtype=dtype))


@pytest.mark.parametrize("shape", [(3, 256, 384), (5, 144, 272), (4, 131, 77), (40, 8, 136)])
def test_of_stacks(shape):
    check(codes(*shape))
    check(codes(2, *shape))


@pytest.mark.parametrize("first", [0, 1, 8, 16])
@pytest.mark.parametrize("padding", [0, 1, 16])
def test_of_slices(first, padding):
    for shape in ((200, 304), (192, 272), (3, 144, 160)):
        x = codes(*shape[:-1], first + shape[-1] + padding)
        check(x[..., first : first + shape[-1]])


def test_of_the_largest_strides():
    """Offsets beyond 2^31 bytes."""
    x = codes(70_000, 32_768)
    out = octofold.ops.transpose(x)
    for rows in (slice(0, 300), slice(65_500, 65_700), slice(69_900, 70_000)):
        assert torch.equal(bits(out)[:, rows], bits(x)[rows].mT)


def test_in_a_graph():
    x = codes(256, 512)
    octofold.ops.transpose(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = octofold.ops.transpose(x)
    x.view(torch.uint8).random_()
    graph.replay()
    assert torch.equal(bits(out), bits(x).mT)
