"""Products that cast their activations, beside what they take the place of: the cast and the
product one after another, and BF16.

    python tests/gpu/measure_dynamic_gemm.py RESULTS.jsonl [M/M/...,N,K ...] [--seconds 300]
        [--dtype bfloat16] [--only TEXT ...] [--planned]

Each candidate is checked first, bit for bit against quantize() and gemm() by the candidate of the
same name, and what dynamic_gemm() takes against FP32 (NaN there before). Then all are screened in
turns, and the best with the planner's own choice and the others once more, longer: CUDA graphs that
go round operands of 256 MB together. A line of JSON for each shape: microseconds by name; last a
table of BF16's time over theirs. What does not fit into --seconds is left out, and said.
--planned: no candidates, only what dynamic_gemm() takes.
"""

import argparse
import json
import statistics
import time

import octofold
import torch
from measure_candidates import (
    ERROR_LIMIT,
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

FEW = "1/2/4/8/16/32/64/128"
LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
SHAPES = [f"{FEW},{n},{k}" for n, k in LAYERS]
CAST = ("e4m3", None, "saturate", "deepgemm")
ALONE, APART, PLANNED, BF16 = "gemm", "cast, gemm", "planned", "bfloat16"
COLUMNS = PLANNED, APART, ALONE


class Problems:
    """One shape's, as lists of calls: one for each set of operands."""

    def __init__(self, pool, dtype, m, n, k):
        self.sizes = m, n, k
        pool.begin()
        count = min(MAX_SETS, max(2, -(-MIN_BYTES // (n * k))))
        self.sets = []
        for _ in range(count):
            x = pool.take("wide", m, k).to(dtype)
            scale = scale_of(pool, n, k, "128x128")
            b = octofold.ScaledTensor(
                pool.take("codes", n, k, torch.float8_e4m3fn), scale, "128x128"
            )
            self.sets.append((x, b, pool.take("out", m, n, torch.bfloat16)))
        self.cast = [octofold.quantize(x) for x, _, _ in self.sets]
        self.wide = [(pool.take("wide", m, k), pool.take("wide", n, k)) for _ in range(count // 2)]

    def dynamic(self, name):
        """By a candidate, or as dynamic_gemm() plans it."""
        calls = []
        for x, b, out in self.sets:
            arguments = (x, b.data, b.scale, None, out, b.granularity, *CAST)
            call = library.dynamic_gemm if name is None else library.dynamic_gemm_by_candidate
            by = () if name is None else (name,)
            calls.append(
                lambda call=call, arguments=arguments, by=by: call(
                    *arguments, torch.cuda.current_stream().cuda_stream, *by
                )
            )
        return calls

    def product(self):
        return [
            lambda a=a, b=b, out=out: octofold.gemm(a, b, out=out)
            for a, (_, b, out) in zip(self.cast, self.sets, strict=True)
        ]

    def cast_and_product(self):
        return [
            lambda x=x, b=b, out=out: octofold.gemm(octofold.quantize(x), b, out=out)
            for x, b, out in self.sets
        ]

    def bfloat16(self):
        outs = [out for _, _, out in self.sets]
        return [
            lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out)
            for (x, w), out in zip(self.wide, outs, strict=False)
        ]

    def is_right(self, name, call):
        """A candidate bit for bit, what is planned by its error."""
        _, b, out = self.sets[0]
        a = self.cast[0]
        out.fill_(torch.nan)
        call()
        if name is None:
            expected = a.dequantize("float32") @ b.dequantize("float32").T
            error = torch.linalg.norm(out.float() - expected) / torch.linalg.norm(expected)
            return bool(error < ERROR_LIMIT)
        ours = out.clone()
        out.fill_(torch.nan)
        tensors = (a.data, a.scale, b.data, b.scale, None, None, None, out)
        stream = torch.cuda.current_stream().cuda_stream
        library.gemm_by_candidate(*tensors, "1x128", "128x128", False, stream, name)
        return torch.equal(ours.view(torch.int16), out.view(torch.int16))


def is_sensible(name, m):
    """Whether it could be the best for so many rows."""
    columns = int(name.split(".")[0].split("x")[1])
    return columns <= max(16, 2 * m) and m <= 4 * columns


def measured(problems, names):
    """Microseconds by name, and names of what is wrong."""
    calls = {name: problems.dynamic(name) for name in names}
    wrong = [name for name, ours in calls.items() if not problems.is_right(name, ours[0])]
    planned = problems.dynamic(None)
    if not problems.is_right(None, planned[0]):
        wrong.append(PLANNED)
    samplers = {name: sampler(ours) for name, ours in calls.items() if name not in wrong}
    screened = in_turns(samplers, 3, 0)
    finalists = {name: samplers[name] for name in sorted(screened, key=screened.get)[:FINALISTS]}
    finalists[PLANNED] = sampler(planned)
    finalists[ALONE] = sampler(problems.product())
    finalists[APART] = sampler(problems.cast_and_product())
    finalists[BF16] = sampler(problems.bfloat16())
    return screened | in_turns(finalists, 7, 4e-3), list(finalists), wrong


def gain(times, of):
    """How many times as fast as BF16, geometric mean."""
    return statistics.geometric_mean(row[BF16] / of(row) for row in times)


def best(row):
    """Of the candidates; of what is planned, where none was measured."""
    others = (PLANNED, ALONE, APART, BF16)
    return min([time for name, time in row.items() if name not in others] or [row[PLANNED]])


def print_table(found):
    """BF16's time over theirs for each number of rows, over all layers."""
    print("\nBF16's time over theirs, geometric mean over the layers; wins: layers where what is")
    print("planned is quicker than cast and gemm apart\n")
    print(f"{'rows':>5} {'best':>6} {'planned':>8} {'apart':>6} {'gemm':>6}  wins")
    for m in sorted({m for m, _, _ in found}):
        times = [row for (rows, _, _), row in found.items() if rows == m]
        planned, apart, alone = (gain(times, lambda row, n=n: row[n]) for n in COLUMNS)
        wins = sum(row[PLANNED] < row[APART] for row in times)
        numbers = f"{gain(times, best):6.3f} {planned:8.3f} {apart:6.3f} {alone:6.3f}"
        print(f"{m:5} {numbers}  {wins} of {len(times)}")


def main():
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--only", nargs="+", metavar="TEXT")
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    names = [] if options.planned else [str(name) for name in library.dynamic_gemm_candidates()]
    if options.only:
        names = [name for name in names if any(text in name for text in options.only)]
    pool, found = Pool(), {}
    with open(options.results, "a") as results:
        for shape in shapes_of(options.shapes):
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {shape} and what follows", flush=True)
                break
            # A kernel that hangs ends the process, but not what was measured before.
            signal_alarm(120)
            problems = Problems(pool, getattr(torch, options.dtype), *shape)
            sensible = [name for name in names if is_sensible(name, shape[0])]
            times, finalists, wrong = measured(problems, sensible)
            signal_alarm(0)
            found[tuple(shape)] = times
            line = {"shape": shape, "dtype": options.dtype, "times": times, "wrong": wrong}
            print(json.dumps(line), file=results, flush=True)
            order = ", ".join(f"{n} {times[n]:.2f}" for n in sorted(finalists, key=times.get))
            print(f"{shape} µs: {order}{f' WRONG {wrong}' if wrong else ''}", flush=True)
    print_table(found)


if __name__ == "__main__":
    main()
