"""Small products with FP8 weights, for sanitizer_problems.py."""

import itertools
from functools import partial

import octofold
import torch
from octofold._ops.gemm_weight_only import multiply_by_weights

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
            results[0] = multiply_by_weights(
                wide, w, bias.to(device), torch.float32, False, None, None, tile
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
