"""Small dot products, packed words, transposes of codes, rotary embeddings, and products whose rows
arrive, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch

from tests.gpu.weight_only_problems import grouped_weight_only_problems, weight_only_problems

PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))
# Rows, K, shards: whole tiles; shards that end within tiles; operands that threads copy, in words
# and byte by byte.
ARRIVALS = ((1024, 512, 4), (700, 272, 5), (70, 300, 2), (70, 301, 7))


def arrival_problems(device, operand, to_device):
    """Names, and what computes a result on the device and on the CPU: of rows that have all come.
    What waits for them runs, and the walk in the order of shards."""

    def arriving(a, b, shards):
        flags = torch.ones(shards, dtype=torch.int32, device=device)
        arrivals = octofold.Arrivals(flags, own=1)
        return octofold.gemm(to_device(a), to_device(b), arrivals=arrivals), octofold.gemm(a, b)

    for pair, (rows, depth, shards) in itertools.product(PAIRS, ARRIVALS):
        a, b = operand(rows, depth, pair[0]), operand(264, depth, pair[1])
        yield f"arrivals {pair} {rows},{depth} in {shards}", partial(arriving, a, b, shards)


def _rotary(x, cos, sin, inverse, device):
    on_device = octofold.ops.rotary(*(t.to(device) for t in (x, cos, sin)), inverse=inverse)
    return on_device.float().cpu(), octofold.ops.rotary(x, cos, sin, inverse=inverse).float()


def rotary_problems(device):
    # In vectors and element by element; heads that fill no thread, and more than a block has.
    for shape, dtype in itertools.product(
        ((2, 70, 8, 128), (1, 33, 5, 50), (3, 1, 1, 2), (1, 5, 130, 256)),
        (torch.bfloat16, torch.float32),
    ):
        x = torch.randn(shape).to(dtype)
        for batch, inverse in ((1, False), (shape[0], True)):
            cos, sin = torch.randn(2, batch, shape[1], shape[3]).to(dtype)
            name = f"rotary {shape} by {batch} {dtype}"
            yield name, partial(_rotary, x, cos, sin, inverse, device)


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
