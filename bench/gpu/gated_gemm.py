"""Gated products beside what they take the place of: the product alone to BF16 [M, 2·N], and the
product and the cast of its activation one after another.

    python tests/gpu/measure_gated_gemm.py RESULTS.jsonl [M,N,K ...] [--activation geglu]
        [--seconds 300]

Each candidate and what gated_gemm() takes are checked first, bit for bit against the operations one
after another (NaN there before). Then all are screened in turns, and the best with the planner's
own choice and the two others once more, longer: CUDA graphs that go round operands of 256 MB
together. A line of JSON for each shape: microseconds by name. What does not fit into --seconds is
left out, and said.
"""

import argparse
import json
import time

import octofold
import torch
from measure_candidates import (
    DEVICE,
    FINALISTS,
    MAX_SETS,
    MIN_BYTES,
    Pool,
    in_turns,
    sampler,
    scale_of,
    shapes_of,
    signal_alarm,
)
from octofold._library import library

SHAPES = (
    "16384,14336,4096",
    "8192,14336,4096",
    "4096,14336,8192",
    "4096,2048,7168",
    "512,14336,4096",
)
CAST = (None, "saturate", "deepgemm")
# One that does not sum K in slices: it rounds its sums as the gated kernels do.
PLAIN = "128x128.w2.c1x1x1.b1.early"
ALONE, APART, PLANNED = "gemm", "gemm, cast", "planned"


class Problems:
    """One shape's, as lists of calls: one for each set of operands."""

    def __init__(self, pool, activation, m, n, k):
        self.activation = activation
        pool.begin()
        fp8 = torch.float8_e4m3fn
        count = min(MAX_SETS, max(2, -(-MIN_BYTES // ((m + 2 * n) * k + m * n))))
        self.sets = []
        for _ in range(count):
            a = octofold.ScaledTensor(
                pool.take("codes", m, k, fp8), scale_of(pool, m, k, "1x128"), "1x128"
            )
            scale = scale_of(pool, 2 * n, k, "128x128") / k**0.5  # gates and ups about 1
            b = octofold.ScaledTensor(pool.take("codes", 2 * n, k, fp8), scale, "128x128")
            codes, both = pool.take("out", m, n, fp8), pool.take("out", m, 2 * n, torch.bfloat16)
            scales = torch.empty((n // 128, -(-m // 4) * 4), device=DEVICE).t()[:m]
            self.sets.append((a, b, both, octofold.ScaledTensor(codes, scales, "1x128")))

    def gated(self, name):
        """By a candidate, or as gated_gemm() plans it."""
        calls = []
        for a, b, _, out in self.sets:
            tensors = (a.data, a.scale, b.data, b.scale, out.data, out.scale)
            options = (a.granularity, b.granularity, self.activation, *CAST)
            call = library.gated_gemm if name is None else library.gated_gemm_by_candidate
            by = () if name is None else (name,)
            calls.append(
                lambda call=call, tensors=tensors, options=options, by=by: call(
                    *tensors, *options, torch.cuda.current_stream().cuda_stream, *by
                )
            )
        return calls

    def product(self):
        return [lambda a=a, b=b, d=d: octofold.gemm(a, b, out=d) for a, b, d, _ in self.sets]

    def product_and_cast(self):
        def call(a, b, both):
            octofold.gemm(a, b, out=both)
            octofold.quantize_activation(both, self.activation)

        return [lambda a=a, b=b, d=d: call(a, b, d) for a, b, d, _ in self.sets]

    def expected(self):
        a, b, both, _ = self.sets[0]
        tensors = (a.data, a.scale, b.data, b.scale, None, None, None, both)
        stream = torch.cuda.current_stream().cuda_stream
        library.gemm_by_candidate(*tensors, a.granularity, b.granularity, False, stream, PLAIN)
        return octofold.quantize_activation(both, self.activation)

    def is_right(self, call, expected):
        out = self.sets[0][3]
        out.data.view(torch.uint8).fill_(0x7F)
        out.scale.fill_(torch.nan)
        call()
        codes = torch.equal(out.data.view(torch.uint8), expected.data.view(torch.uint8))
        return codes and torch.equal(out.scale, expected.scale)


def measured(problems):
    """Microseconds by name, and names of what is wrong."""
    expected = problems.expected()
    calls = {str(name): problems.gated(str(name)) for name in library.gated_gemm_candidates()}
    calls[PLANNED] = problems.gated(None)
    wrong = [name for name, ours in calls.items() if not problems.is_right(ours[0], expected)]
    del expected
    samplers = {name: sampler(ours) for name, ours in calls.items() if name not in wrong}
    screened = in_turns(samplers, 3, 0)
    best = sorted(screened, key=screened.get)[:FINALISTS]
    finalists = {name: samplers[name] for name in {*best, PLANNED} & set(samplers)}
    finalists[ALONE] = sampler(problems.product())
    finalists[APART] = sampler(problems.product_and_cast())
    return screened | in_turns(finalists, 7, 4e-3), list(finalists), wrong


def main():
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--activation", default="swiglu")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    pool = Pool()
    with open(options.results, "a") as results:
        for shape in shapes_of(options.shapes):
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {shape} and what follows", flush=True)
                break
            # A kernel that hangs ends the process, but not what was measured before.
            signal_alarm(120)
            times, finalists, wrong = measured(Problems(pool, options.activation, *shape))
            signal_alarm(0)
            line = {"shape": shape, "activation": options.activation, "times": times}
            print(json.dumps(line | {"wrong": wrong}), file=results, flush=True)
            ratios = ", ".join(
                f"{name} {times[name] / times[ALONE]:.3f}"
                for name in sorted(finalists, key=times.get)
            )
            mark = f" WRONG {wrong}" if wrong else ""
            print(f"{shape} gemm alone {times[ALONE]:.1f} µs; × it: {ratios}{mark}", flush=True)


if __name__ == "__main__":
    main()
