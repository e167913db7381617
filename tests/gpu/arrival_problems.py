"""Products whose rows arrive, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch

PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))
# Rows, K, shards: whole tiles; shards that end within tiles; operands that threads copy, in words
# and byte by byte.
SHAPES = ((1024, 512, 4), (700, 272, 5), (70, 300, 2), (70, 301, 7))


def arrival_problems(device, operand, to_device):
    """Names, and what computes a result on the device and on the CPU: of rows that have all come.
    What waits for them runs, and the walk in the order of shards."""

    def arriving(a, b, shards):
        flags = torch.ones(shards, dtype=torch.int32, device=device)
        arrivals = octofold.Arrivals(flags, own=1)
        return octofold.gemm(to_device(a), to_device(b), arrivals=arrivals), octofold.gemm(a, b)

    for pair, (rows, depth, shards) in itertools.product(PAIRS, SHAPES):
        a, b = operand(rows, depth, pair[0]), operand(264, depth, pair[1])
        yield f"arrivals {pair} {rows},{depth} in {shards}", partial(arriving, a, b, shards)
