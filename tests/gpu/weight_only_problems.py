"""Small products with FP8 weights, and of groups of rows with them, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch
from octofold import Masked, Rows, ScaledTensor, grouped_gemm_weight_only, tuning
from octofold.ops import Gathered, grouped_gemm_weight_only_gradient

from tests.gpu.targets import is_hopper
from tests.python.casting import GRANULARITIES as GRANULARITIES

# Few rows and several tiles, ragged; K and N in whole units of 16 bytes, and not.
SHAPES = ((1, 72, 272), (13, 144, 656), (70, 144, 272), (131, 136, 144), (9, 37, 301))


def _flat(results):
    return torch.cat([result.float().flatten().cpu() for result in results])


def _products(x, gradient, codes, scale, granularity, bias, device):
    def run(device):
        w = octofold.ScaledTensor(codes.to(device), scale.to(device), granularity)
        wide = x.to(device)
        results = [
            octofold.gemm_weight_only(wide, w, bias=bias.to(device), out_dtype=torch.float32),
            octofold.ops.gemm_weight_only_gradient(gradient.to(device), w, out_dtype=torch.float32),
        ]
        if x.shape[0] > 100 and device != "cpu" and not is_hopper():
            tile = "128x96.w2x2x1.s3.k1.ahead"
            with tuning.using(tile):
                results[0] = octofold.gemm_weight_only(
                    wide, w, bias=bias.to(device), out_dtype=torch.float32
                )
        if x.shape[0] <= 16:
            codes_of_x = (8 * wide).to(torch.float8_e5m2)
            results += [
                octofold.gemm_weight_only(operand, w, out_dtype=torch.float32)
                for operand in (wide, wide.float(), codes_of_x)
            ]
        return _flat(results)

    return run(device), run("cpu")


def weight_only_problems(device):
    for (m, n, k), granularity in itertools.product(SHAPES, GRANULARITIES):
        codes = (8 * torch.rand(n, k) + 1).to(torch.float8_e4m3fn)  # sums that nothing cancels
        scale = torch.exp2(4 * torch.rand(octofold.ops.scale_shape(granularity, n, k)) - 4)
        x, gradient = (torch.rand(m, columns).half() + 0.5 for columns in (k, n))
        problem = x, gradient, codes, scale, granularity, torch.rand(n), device
        yield f"weight only {granularity} {m},{n},{k}", partial(_products, *problem)


# Rows of groups, N and K: a row for each of a few experts, many for some, whole units and not.
GROUPS = (
    ((0, 1, 0, 0, 1, 1), 72, 272),
    ((13, 0, 5), 144, 656),
    ((131, 0, 40), 136, 144),
    ((3, 20), 37, 301),
)


def _products_of_groups(sizes, codes, scale, granularity, x, room, gradient, device):
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
    for (sizes, n, k), granularity in itertools.product(GROUPS, GRANULARITIES):
        groups, rows = len(sizes), sum(sizes)
        codes = (8 * torch.rand(groups, n, k) + 1).to(torch.float8_e4m3fn)
        of_one = octofold.ops.scale_shape(granularity, n, k)
        shape = (groups,) if granularity == "tensor" else (groups, *of_one)
        scale = torch.exp2(4 * torch.rand(shape) - 4)
        x, gradient = (torch.rand(rows, columns).half() + 0.5 for columns in (k, n))
        room = torch.rand(groups, max(sizes) + 1, k).half() + 0.5
        problem = sizes, codes, scale, granularity, x, room, gradient, device
        yield (
            f"weight only groups {granularity} {rows},{n},{k}",
            partial(_products_of_groups, *problem),
        )
