"""Products with FP8 weights beside torch.mm in BF16; the rate is that at which weights are read.

    python bench/gpu/weight_only.py RESULTS.jsonl [M/M/...,N,K ...] [--granularity 128x128]
        [--formats e4m3 e5m2]

Up to 16 rows x in FP32 and e4m3 too, and a single row as a vector; for more rows, the gradient.
From 64 rows on FP16 by mma.sync (half_product.py) takes turns with them, and from 1024 on mma.sync
alone (mma_ceiling.py).
"""

import sys
from functools import partial

import octofold
import torch
from common.measure import Build, Implementation, measure
from common.operands import DTYPES, LAYERS, calls_of, normal, relative_error, scaled, sets_of
from common.run import Run, new_parser, shapes_of, text_of
from half_product import build as build_half
from half_product import tiles_of as half_tiles
from mma_ceiling import best_build

ROWS = "1/4/16/64/1024/4096"
HALF_ROWS, CEILING_ROWS = 64, 1024
ERROR_LIMIT = 5e-3  # of the norm; BF16 alone makes 1.7e-3


def build(run, name, pairs, call, values, size, ours=True):
    """pairs: operands of the calls; values: what the first pair's right operand stands for."""

    def make():
        def error():
            left = pairs[0][0].float()
            return relative_error(call(*pairs[0]), left @ values())

        return Implementation(calls_of(call, pairs), error, ERROR_LIMIT)

    m, n, k = size
    return Build(name, make, ours, n * k * pairs[0][1].data.itemsize, 2 * m * n * k)


def to_float32(x, w):
    return octofold.gemm_weight_only(x, w, out_dtype=torch.float32)


def builds(run, m, n, k, granularity, formats):
    size = (m, n, k)
    xs = sets_of(partial(normal, run, m, k), n * k + 2 * m * (n + k), run)
    for name in formats:
        weights = [scaled(run, n, k, granularity, name) for _ in xs]

        def operands(left, dtype, weights=weights):
            return list(zip((x.to(DTYPES[dtype]) for x in left), weights, strict=True))

        def values(transposed=True, weights=weights):
            return weights[0].dequantize().T if transposed else weights[0].dequantize()

        for dtype in ("bfloat16", "float16"):
            pairs = operands(xs, dtype)
            yield build(
                run, f"weight only {name} x {dtype}", pairs, octofold.gemm_weight_only, values, size
            )
        if m > 16:
            pairs = operands([normal(run, m, n) for _ in xs], "bfloat16")
            call = octofold.ops.gemm_weight_only_gradient
            yield build(run, f"gradient {name}", pairs, call, partial(values, False), size)
            continue
        for dtype in ("float32", "e4m3"):
            title = f"weight only {name} x {dtype}"
            yield build(run, title, operands(xs, dtype), to_float32, values, size)
        for dtype in ("bfloat16", "float16", "float32", "e4m3") if m == 1 else ():
            vectors = operands([x[0] for x in xs], dtype)
            yield build(run, f"vector {name} x {dtype}", vectors, to_float32, values, size)
    wide = [normal(run, n, k) for _ in xs[: max(2, len(xs) // 2)]]
    pairs = list(zip(xs, (w.T for w in wide), strict=False))
    yield build(
        run, "torch.mm bfloat16", pairs, torch.mm, lambda: pairs[0][1].float(), size, ours=False
    )
    if m >= HALF_ROWS and run.on_gpu:
        yield from (build_half(run, m, n, k, tile) for tile in half_tiles(m, n, k))
    if m >= CEILING_ROWS and run.on_gpu:
        yield best_build(run)


def main():
    parser = new_parser(__doc__, rounds=13, seconds=500)
    parser.add_argument("shapes", nargs="*", metavar="M,N,K")
    parser.add_argument("--granularity", default="128x128")
    parser.add_argument("--formats", nargs="+", choices=("e4m3", "e5m2"), default=["e4m3", "e5m2"])
    options = parser.parse_intermixed_args()
    with Run(options) as run:
        default = [f"{ROWS},{n},{k}" for n, k in LAYERS] if run.on_gpu else ["1/20,256,384"]
        for m, n, k in run.cases(shapes_of(options.shapes or default)):
            made = builds(run, m, n, k, options.granularity, options.formats)
            measure(run, "weight-only", text_of((m, n, k)), made, "torch.mm bfloat16")
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
