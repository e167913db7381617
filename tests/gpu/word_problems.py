"""Small dot products, packed words, transposes of codes, and products with FP8 weights, for
sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch

from tests.gpu.grouped_weight_only_problems import grouped_weight_only_problems
from tests.gpu.weight_only_problems import weight_only_problems


def _dot(a, b, device):
    """Dot products of FP32 or BF16, and of codes with scales of blocks, anywhere in memory; and
    words, packed and unpacked."""
    cast = octofold.quantize(a[None])

    def run(device):
        x, y = a.to(device), b.to(device)
        x8 = octofold.ScaledTensor(cast.data.to(device), cast.scale.to(device), "1x128")
        words = octofold.ops.pack(x[: len(x) // 4 * 4], "e5m2")
        sums = [
            octofold.ops.dot(x, y),
            octofold.ops.dot(x8, y),
            octofold.ops.dot(x8, x8),
            octofold.ops.dot(x[1:], y[:-1]),
            octofold.ops.dot(x8.data[0, 1:], y[1:]),
        ]
        return torch.cat([torch.stack(sums), octofold.ops.unpack(words, "e5m2")])

    return run(device), run("cpu")


def _transpose(codes, device):
    return tuple(
        octofold.ops.transpose(x.view(torch.float8_e4m3fn)).view(torch.uint8)
        for x in (codes.to(device), codes)
    )


def word_problems(device):
    # One part and several, whole vectors and not.
    for size, dtype in itertools.product((5, 512, 20_001), (torch.bfloat16, torch.float32)):
        a = torch.rand(size) + 0.5  # sums that nothing cancels
        yield f"dot {size} {dtype}", partial(_dot, a, a.flip(0).to(dtype), device)
    # Whole vectors in both, in neither, in one.
    for shape in ((2, 400, 272), (3, 131, 77), (130, 48), (48, 130), (1, 1)):
        codes = torch.randint(1, 256, shape, dtype=torch.uint8)
        yield f"transpose {shape}", partial(_transpose, codes, device)
    yield from weight_only_problems(device)
    yield from grouped_weight_only_problems(device)
