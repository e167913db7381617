"""Small products of groups of rows with FP8 weights, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch
from octofold import Masked, Rows, ScaledTensor, grouped_gemm_weight_only
from octofold.ops import Gathered, grouped_gemm_weight_only_gradient

from tests.python.casting import GRANULARITIES

# Rows of groups, N and K: a row for each of a few experts, many for some, whole units and not.
SHAPES = (
    ((0, 1, 0, 0, 1, 1), 72, 272),
    ((13, 0, 5), 144, 656),
    ((131, 0, 40), 136, 144),
    ((3, 20), 37, 301),
)


def _products(sizes, codes, scale, granularity, x, room, gradient, device):
    rows = sum(sizes)

    def run(device):
        w = ScaledTensor(codes.to(device), scale.to(device), granularity)
        numbers = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=device)
        counts = torch.tensor(sizes, dtype=torch.int32, device=device)
        order = torch.arange(rows, dtype=torch.int32, device=device).flip(0).contiguous()
        factors = torch.rand(rows, 1, generator=torch.Generator().manual_seed(1)).to(device)
        wide, back, options = x.to(device), gradient.to(device), {"out_dtype": torch.float32}
        masked = grouped_gemm_weight_only(room.to(device), w, Masked(counts, 2), **options)
        results = [
            grouped_gemm_weight_only(wide, w, Rows(numbers), **options),
            grouped_gemm_weight_only(Gathered(wide, order), w, Rows(numbers), **options),
            grouped_gemm_weight_only_gradient(
                Gathered(back, order, factors=factors), w, Rows(numbers), **options
            ),
            *(masked[group, :size] for group, size in enumerate(sizes)),
        ]
        return torch.cat([result.float().flatten().cpu() for result in results])

    return run(device), run("cpu")


def grouped_weight_only_problems(device):
    for (sizes, n, k), granularity in itertools.product(SHAPES, GRANULARITIES):
        groups, rows = len(sizes), sum(sizes)
        codes = (8 * torch.rand(groups, n, k) + 1).to(torch.float8_e4m3fn)
        of_one = octofold.ops.scale_shape(granularity, n, k)
        shape = (groups,) if granularity == "tensor" else (groups, *of_one)
        scale = torch.exp2(4 * torch.rand(shape) - 4)
        x, gradient = (torch.rand(rows, columns).half() + 0.5 for columns in (k, n))
        room = torch.rand(groups, max(sizes) + 1, k).half() + 0.5
        problem = sizes, codes, scale, granularity, x, room, gradient, device
        yield f"weight only groups {granularity} {rows},{n},{k}", partial(_products, *problem)
