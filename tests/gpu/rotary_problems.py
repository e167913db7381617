"""Small rotary embeddings, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch


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
