"""Products with FP8 weights beside torch.mm in BF16: microseconds, and the rate at which weights
are read or numbers multiplied.

    python tests/gpu/measure_weight_only.py RESULTS.jsonl [M,N,K ...] [--granularity 128x128]
        [--formats e4m3 e5m2] [--rounds 13]

Up to 16 rows gemv() too, of x in BF16, FP16, FP32 and e4m3; of more, the gradient. Each is checked
first against FP32 (NaN there before). Then all are taken in turns, as CUDA graphs that go round
operands of 256 MB together. From 1024 rows on mma.sync alone takes turns with them, and each has a
share of its rate. A line of JSON for each shape.
"""

import argparse
import json

import octofold
import torch
from measure_candidates import MAX_SETS, MIN_BYTES, in_turns, sampler, signal_alarm
from mma_ceiling import best_sampler

SIZES = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
ROWS = (1, 4, 16, 64, 1024, 4096)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
X_TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
}
CEILING, CEILING_ROWS = "mma.sync", 1024
ERROR_LIMIT = 5e-3  # of the norm; BF16 alone makes 1.7e-3


def weights(n, k, dtype, granularity):
    codes = torch.randn(n, k, device="cuda").to(dtype)
    scale = torch.rand(octofold.ops.scale_shape(granularity, n, k), device="cuda") + 0.5
    return octofold.ScaledTensor(codes, scale, granularity)


class Shape:
    """Operands that go round, and all ways to multiply them."""

    def __init__(self, m, n, k, granularity, formats):
        self.m, self.n, self.k = m, n, k
        count = min(MAX_SETS, max(2, -(-MIN_BYTES // (n * k + 2 * m * (n + k)))))
        self.w = {
            name: [weights(n, k, FORMATS[name], granularity) for _ in range(count)]
            for name in formats
        }
        self.x = [torch.randn(m, k, device="cuda").bfloat16() for _ in range(count)]
        self.gradient = [torch.randn(m, n, device="cuda").bfloat16() for _ in range(count)]
        self.wide = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(max(2, count // 2))]

    def ways(self):
        """Names, calls, and what the first has to give."""
        for name, sets in self.w.items():
            values = sets[0].dequantize()
            for x_name in ("bfloat16", "float16"):
                xs = [x.to(X_TYPES[x_name]) for x in self.x]
                yield (
                    f"weight only {name} x {x_name}",
                    [
                        lambda x=x, w=w: octofold.gemm_weight_only(x, w)
                        for x, w in zip(xs, sets, strict=True)
                    ],
                    xs[0].float() @ values.T,
                )
            if self.m > 16:
                yield (
                    f"gradient {name}",
                    [
                        lambda g=g, w=w: octofold.ops.gemm_weight_only_gradient(g, w)
                        for g, w in zip(self.gradient, sets, strict=True)
                    ],
                    self.gradient[0].float() @ values,
                )
                continue
            for x_name, dtype in X_TYPES.items():
                xs = [x.to(dtype) for x in self.x]
                yield (
                    f"gemv {name} x {x_name}",
                    [
                        lambda x=x, w=w: octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
                        for x, w in zip(xs, sets, strict=True)
                    ],
                    xs[0].float() @ values.T,
                )
        pairs = list(zip(self.x, self.wide, strict=False))
        yield (
            "torch.mm bfloat16",
            [lambda x=x, w=w: torch.mm(x, w.T) for x, w in pairs],
            self.x[0].float() @ self.wide[0].float().T,
        )


def measured(shape, rounds):
    """Microseconds by name, and the TFLOPS of mma.sync alone meanwhile."""
    samplers, flops = {}, 0
    if shape.m >= CEILING_ROWS:
        try:
            samplers[CEILING], flops = best_sampler("bfloat16")
        except (AssertionError, OSError, RuntimeError) as reason:
            print(f"{CEILING}: {reason}", flush=True)
    for name, calls, expected in shape.ways():
        error = float((calls[0]().float() - expected).norm() / expected.norm())
        if not error < ERROR_LIMIT:  # NaN is wrong too
            print(f"{name}: error {error:.1e}", flush=True)
            continue
        samplers[name] = sampler(calls)
    times = in_turns(samplers, rounds, 0.01)
    return times, flops / times.pop(CEILING) * 1e-6 if flops else None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("shapes", nargs="*", metavar="M,N,K")
    parser.add_argument("--granularity", default="128x128")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=13)
    options = parser.parse_args()
    shapes = [tuple(map(int, shape.split(","))) for shape in options.shapes]
    torch.backends.cuda.matmul.allow_tf32 = False
    with open(options.results, "a") as results:
        for m, n, k in shapes or [(m, n, k) for n, k in SIZES for m in ROWS]:
            signal_alarm(180)  # a kernel that hangs ends the process
            shape = Shape(m, n, k, options.granularity, options.formats)
            times, ceiling = measured(shape, options.rounds)
            signal_alarm(0)
            line = {"shape": [m, n, k], "granularity": options.granularity, "times": times}
            if ceiling:
                line["mma_sync_tflops"] = ceiling
                print(f"{m},{n},{k} mma.sync alone: {ceiling:.1f} TFLOPS", flush=True)
            print(json.dumps(line), file=results, flush=True)
            peer = times.get("torch.mm bfloat16")
            for name, microseconds in times.items():
                read = n * k * (2 if name.startswith("torch") else 1)
                tflops = 2e-6 * m * n * k / microseconds
                share = f" {tflops / ceiling:5.2f} of mma.sync's" if ceiling else ""
                print(
                    f"{m},{n},{k} {name:<28} {microseconds:9.2f} µs "
                    f"{read / microseconds * 1e-6:6.2f} TB/s of weights "
                    f"{tflops:7.1f} TFLOPS "
                    f"{peer / microseconds if peer else 0:5.2f} of torch.mm's speed{share}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
