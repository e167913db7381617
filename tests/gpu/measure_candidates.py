"""Every GEMM configuration at many shapes, beside cuBLASLt and BF16: what the planner's costs come
from, and what it is judged by.

    python tests/gpu/measure_candidates.py RESULTS.jsonl SHAPE ... [--seconds 300]
        [--pair 1x128 128x128] [--out float32] [--add] [--fast] [--unaligned]
        [--only TEXT ... | --planned]

SHAPE is M,N,K; M may be several, with slashes: 1/16/64,4096,7168; @FILE has one a line. Each
result is checked against FP32 first (NaN there before). Then all are screened in turns, and the
best with the peers and the planner's own choice once more, longer: CUDA graphs that go round
operands of 256 MB together. A line of JSON for each shape: microseconds by name, the second number
where it was timed again. What does not fit into --seconds is left out, and said.
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time

import octofold
import torch
from octofold._core.library import library
from octofold_tool.gpu.tune import is_sensible

MIN_BYTES, MAX_SETS = 256_000_000, 64
WINDOW = 0.7e-3  # seconds of a sample
FINALISTS = 6
ERROR_LIMIT = 2.5e-3  # of the norm; BF16 alone makes 1.7e-3
FAST_ERROR_LIMIT = 5e-2
DEVICE = "cuda"
POOL_BYTES = 1 << 30


class Pool:
    """Memory that all shapes cut their operands from: filled once."""

    def __init__(self):
        generator = torch.Generator(DEVICE).manual_seed(5)
        self.codes = torch.empty(POOL_BYTES, dtype=torch.uint8, device=DEVICE)
        for part in self.codes.split(1 << 24):
            values = torch.randn(part.numel(), generator=generator, device=DEVICE)
            part.copy_(values.to(torch.float8_e4m3fn).view(torch.uint8))
        self.scales = torch.rand(1 << 26, generator=generator, device=DEVICE) + 0.5
        self.wide = torch.empty(POOL_BYTES // 2, dtype=torch.bfloat16, device=DEVICE).normal_()
        self.out = torch.empty(POOL_BYTES, dtype=torch.uint8, device=DEVICE)
        self.begin()

    def begin(self):
        self.taken = dict.fromkeys(("codes", "scales", "wide", "out"), 0)

    def take(self, name, rows, columns, dtype=None):
        """A contiguous matrix at a multiple of 256 bytes."""
        memory = getattr(self, name)
        size = rows * columns * (1 if dtype is None or name != "out" else dtype.itemsize)
        start = self.taken[name]
        if start + size > memory.numel():
            start = 0
        self.taken[name] = start + -(-size // 256) * 256
        part = memory[start : start + size]
        return (part if dtype is None else part.view(dtype)).view(rows, columns)


def scale_of(pool, rows, k, granularity):
    blocks = -(-k // 128)
    if granularity == "1x128":  # rows next to each other, as quantize() makes it
        return pool.take("scales", blocks, -(-rows // 4) * 4).t()[:rows]
    if granularity == "128x128":
        return pool.take("scales", -(-rows // 128), blocks)
    return pool.take("scales", 1, rows if granularity == "channel" else 1).view(-1)


class Products:
    """One shape's, in all ways, as lists of calls: one for each set of operands."""

    def __init__(self, pool, options, m, n, k):
        self.m, self.n, self.k = m, n, k
        dtype = getattr(torch, options.out)
        size = (m + n) * k + dtype.itemsize * m * n
        count = min(MAX_SETS, max(2, -(-MIN_BYTES // size)))
        pool.begin()
        self.sets = []
        for _ in range(count):
            a, b = (
                octofold.ScaledTensor(
                    pool.take("codes", rows, k, torch.float8_e4m3fn),
                    scale_of(pool, rows, k, granularity),
                    granularity,
                )
                for rows, granularity in zip((m, n), options.pair, strict=True)
            )
            self.sets.append((a, b, pool.take("out", m, n, dtype)))
        self.add, self.fast = options.add, options.fast
        self.wide = [(pool.take("wide", m, k), pool.take("wide", n, k)) for _ in range(count // 2)]
        self.wide_out = [pool.take("out", m, n, torch.bfloat16) for _ in self.wide]
        a, b, _ = self.sets[0]
        self.expected = a.dequantize() @ b.dequantize().T
        self.norm = torch.linalg.norm(self.expected)

    def ours(self, name):
        """By a candidate, or as gemm() plans it."""
        calls = []
        for a, b, out in self.sets:
            c = out if self.add else None
            if name is None:
                calls.append(
                    lambda a=a, b=b, out=out, c=c: octofold.gemm(
                        a, b, out=out, c=c, fast_accumulation=self.fast
                    )
                )
                continue
            tensors = (a.data, a.scale, b.data, b.scale, c, None, None, out)
            how = (a.granularity, b.granularity, self.fast)
            calls.append(
                lambda tensors=tensors, how=how: library.gemm_by_candidate(
                    *tensors, *how, torch.cuda.current_stream().cuda_stream, name
                )
            )
        return calls

    def peers(self, pair, dtype=None):
        """What torch has, into outputs of ours or of `dtype`: without c."""
        one = torch.ones(1, device=DEVICE)
        sets = self.sets
        if dtype not in (None, sets[0][2].dtype):
            sets = [
                (a, b, torch.empty(self.m, self.n, dtype=dtype, device=DEVICE)) for a, b, _ in sets
            ]
        peers = {
            "tensor scales": [
                lambda a=a, b=b, out=out: torch._scaled_mm(
                    a.data, b.data.t(), one, one, out_dtype=out.dtype, use_fast_accum=True, out=out
                )
                for a, b, out in sets
            ],
            "bfloat16": [
                lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out)
                for (x, w), out in zip(self.wide, self.wide_out, strict=True)
            ],
        }
        if "128x128" not in pair or -(-self.k // 128) % 4 == 0:
            scaled = []
            for a, b, out in sets:
                left, right = (
                    x.scale[:, None] if x.granularity == "channel" else x.scale for x in (a, b)
                )
                scaled.append(
                    lambda a=a, b=b, left=left, right=right, out=out: torch._scaled_mm(
                        a.data,
                        b.data.t(),
                        left,
                        right.t() if right.dim() == 2 else right,
                        out_dtype=out.dtype,
                        use_fast_accum=self.fast,
                        out=out,
                    )
                )
            peers["same scales"] = scaled
        return peers

    def error(self, call):
        out = self.sets[0][2]
        out.fill_(0 if self.add else float("nan"))
        call()
        return float(torch.linalg.norm(out.float() - self.expected) / self.norm)


def sampler(calls):
    """Takes microseconds of one call."""
    stream = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(replays):
        graph.replay()
        start.record(stream)
        for _ in range(replays):
            graph.replay()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / replays

    replays = max(1, round(WINDOW / seconds(1)))
    return lambda: seconds(replays) / len(calls) * 1e6


def in_turns(samplers, rounds, rest):
    """Median of each."""
    samples = {name: [] for name in samplers}
    names = list(samplers)
    for round_ in range(rounds):
        for index in range(len(names)):
            name = names[(index + round_) % len(names)]
            time.sleep(rest)
            samples[name].append(samplers[name]())
    return {name: statistics.median(times) for name, times in samples.items()}


def measured(products, names, pair):
    """Microseconds by name: screened, and of the best again."""
    calls, wrong = {}, {}
    limit = FAST_ERROR_LIMIT if products.fast else ERROR_LIMIT
    for name in names:
        ours = products.ours(name)
        error = products.error(ours[0])
        if not error < limit:  # NaN is wrong too
            wrong[name] = error
        else:
            calls[name] = ours
    planned = products.ours(None)
    error = products.error(planned[0])
    if not error < limit:
        wrong["planned"] = error
    peers = {}
    for dtype in (torch.float32, torch.bfloat16) if products.add else (None,):
        for name, theirs in products.peers(pair, dtype).items():
            try:
                theirs[0]()
                peers[name if dtype is None else f"{name}, {dtype}"] = theirs
            except (RuntimeError, ValueError):
                continue
    samplers = {name: sampler(ours) for name, ours in calls.items()}
    times = {name: [micro] for name, micro in in_turns(samplers, 3, 0).items()}
    best = sorted(times, key=times.get)[:FINALISTS]
    finalists = {name: samplers[name] for name in best}
    finalists["planned"] = sampler(planned)
    finalists |= {name: sampler(theirs) for name, theirs in peers.items()}
    for name, micro in in_turns(finalists, 7, 4e-3).items():
        times.setdefault(name, []).append(micro)
    return times, wrong


def names_of(options):
    (a, b), c = options.pair, options.out if options.add else None
    form = {"a": "e4m3", "a_granularity": a, "b": "e4m3", "b_granularity": b, "out": options.out}
    more = {"c": c, "bias": None, "fast_accumulation": options.fast}
    fits = not options.unaligned
    names = library.gemm_candidates({"m": 1, "n": 1, "k": 1, **form, **more}, fits, fits, fits)
    return [str(n) for n in names if not options.only or any(t in str(n) for t in options.only)]


def compile_all(names, options):
    """In a process of its own: its share, into the disk cache."""
    rows, k = (255, 513) if options.unaligned else (256, 512)
    a, b = (
        octofold.quantize(torch.randn(rows, k, device=DEVICE), granularity)
        for granularity in options.pair
    )
    out = torch.zeros(rows, rows, dtype=getattr(torch, options.out), device=DEVICE)
    c = out if options.add else None
    stream = torch.cuda.current_stream().cuda_stream
    for name in names[options.share :: options.of]:
        library.gemm_by_candidate(
            a.data, a.scale, b.data, b.scale, c, None, None, out,
            a.granularity, b.granularity, options.fast, stream, name,
        )  # fmt: skip
    torch.cuda.synchronize()


def shapes_of(texts):
    for text in texts:
        rows, n, k = text.split(",")
        for m in rows.split("/"):
            yield int(m), int(n), int(k)


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    parser.add_argument("results")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--pair", nargs=2, default=("1x128", "128x128"))
    parser.add_argument("--out", default="bfloat16")
    parser.add_argument("--add", action="store_true", help="c is out")
    parser.add_argument("--fast", action="store_true", help="fast_accumulation")
    parser.add_argument("--unaligned", action="store_true", help="K is no multiple of 16")
    parser.add_argument("--only", nargs="*", default=(), help="parts of candidates' names")
    parser.add_argument("--planned", action="store_true", help="what gemm() takes, and peers")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    begin = time.monotonic()
    options = parsed()
    names = names_of(options)
    if options.share is not None:
        compile_all(names, options)
        return
    count = min(12, multiprocessing.cpu_count())
    compilers = [
        subprocess.Popen([sys.executable, *sys.argv, "--share", str(i), "--of", str(count)])
        for i in range(0 if options.planned else count)
    ]
    pool = Pool()
    if any(compiler.wait() for compiler in compilers):
        print("a compiling process failed", flush=True)
    print(f"{len(names)} candidates compiled: {time.monotonic() - begin:.0f} s", flush=True)
    with open(options.results, "a") as results:
        for shape in shapes_of(options.shapes):
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {shape} and what follows", flush=True)
                break
            # A kernel that hangs ends the process, but not what was measured before.
            signal_alarm(60)
            sensible = [] if options.planned else names
            sensible = [name for name in sensible if is_sensible(name, shape[0])]
            times, wrong = measured(Products(pool, options, *shape), sensible, options.pair)
            signal_alarm(0)
            line = {"shape": shape, "times": times, "wrong": wrong}
            print(json.dumps(line), file=results, flush=True)
            ours = {name: t[-1] for name, t in times.items() if name in names and len(t) > 1}
            ours = ours or {"planned": times["planned"][0]}
            best = min(ours, key=ours.get)
            rest = {name: t[0] / ours[best] for name, t in times.items() if name not in names}
            others = " ".join(f"{name} {ratio:.2f}" for name, ratio in rest.items())
            mark = f" WRONG {wrong}" if wrong else ""
            print(f"{shape} {ours[best]:.2f} {best}: {others}{mark}", flush=True)


def signal_alarm(seconds):
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    signal.alarm(seconds)


if __name__ == "__main__":
    main()
