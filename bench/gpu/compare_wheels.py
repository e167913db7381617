"""Two builds of Octofold beside each other on one GPU, in one run:

    python tests/gpu/compare_wheels.py OLD_SITE NEW_SITE [--json FILE] [--bound 1.01]

Each SITE is a folder that a wheel was unpacked into (pip install --target). A process for each
holds the same operands and takes samples when it is told to, one process after the other (old new
new old …), so that a clock that moves with temperature moves for both. Times of products are of
CUDA graphs of about 2 ms that go round operands which together are larger than any L2 cache; host
times are of calls in a row, with torch.mm(out=) in the same turns.

Prints the shapes of docs/performance.md with new / old; exit code 1 if a shape takes longer than
--bound times what it took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
SHAPES = [(m, n, k) for m in (1, 64, 128, 1024, 4096) for n, k in LAYERS]
HOST_SHAPE = (64, 128, 512)  # done before the host has queued the next one
HOST_CALLS = 200  # fewer than a stream's queue holds
HOST_ROUNDS = 20
WINDOW, REST = 2e-3, 10e-3  # seconds of a sample, and before it
MIN_BYTES, MAX_SETS = 256_000_000, 512


# ---- The process of one build: a line of JSON in, a line of JSON out ----------------------------


class Worker:
    """Answers requests by name: describe, product, host, sample."""

    def __init__(self, device):
        import octofold
        import torch

        self.octofold, self.torch, self.device = octofold, torch, torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.samplers = {}

    def describe(self):
        name = self.torch.cuda.get_device_name() if self.on_gpu else "the CPU"
        return {"octofold": self.octofold.__file__, "torch": self.torch.__version__, "device": name}

    def operands(self, shape, count):
        """The same numbers at the same places in either process: torch alone allocates. Where
        operands lie moves the time of a small product by up to 3 %."""
        m, n, k = shape
        torch, device = self.torch, self.device
        generator = torch.Generator(device).manual_seed(7)

        def scaled(rows, granularity, shape, strides):
            x = torch.randn(rows, k, generator=generator, device=device)
            scale = torch.empty_strided(shape, strides, device=device)
            scale.copy_(torch.rand(shape, generator=generator, device=device) + 0.5)
            codes = x.to(torch.float8_e4m3fn)
            return self.octofold.ScaledTensor(codes, scale, granularity), x

        sets = []
        blocks = -(-k // 128)
        for _ in range(count):
            a, x = scaled(m, "1x128", (m, blocks), (1, -(-m // 4) * 4))
            b, w = scaled(n, "128x128", (-(-n // 128), blocks), (blocks, 1))
            out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
            sets.append((a, b, out, x, w))
        return sets

    def product(self, shape):
        """Prepares samples of seconds per product; answers with the relative error of the first."""
        m, n, k = shape
        size = (m + n) * k + 2 * m * n
        count = min(MAX_SETS, max(2, -(-MIN_BYTES // size))) if self.on_gpu else 2
        sets = [(self.octofold.gemm, a, b, out) for a, b, out, _, _ in self.operands(shape, count)]
        for gemm, a, b, out in sets:
            gemm(a, b, out=out)
        error = self.error_of(*sets[0][1:])

        def once():
            for gemm, a, b, out in sets:
                gemm(a, b, out=out)

        self.samplers = {"product": self.graph_sampler(once, count) if self.on_gpu else once}
        return error

    def error_of(self, a, b, out):
        """Of some rows, against FP64."""
        rows = slice(0, 64)
        left = a.dequantize()[rows].double()
        expected = left @ b.dequantize().double().T
        error = self.torch.linalg.norm(out[rows].double() - expected)
        return float(error / self.torch.linalg.norm(expected))

    def graph_sampler(self, once, count):
        def captured(passes):
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                for _ in range(passes):
                    once()
            return graph

        def seconds(graph):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()  # not timed
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3

        self.torch.cuda.synchronize()
        passes = max(1, round(WINDOW / seconds(captured(1))))
        graph = captured(passes)

        def sample():
            time.sleep(REST)
            return seconds(graph) / (passes * count)

        return sample

    def host(self):
        """Prepares samples of host seconds per call; answers with the calls' names."""
        torch, octofold = self.torch, self.octofold
        ((a, b, out, x, w),) = self.operands(HOST_SHAPE, 1)
        x, w = x.bfloat16(), w.bfloat16().T
        wide = torch.empty_like(out)

        def multiply(a_data, a_scale, b_data, b_scale):
            left = octofold.ScaledTensor(a_data, a_scale, "1x128")
            return octofold.gemm(left, octofold.ScaledTensor(b_data, b_scale, "128x128"))

        parts = (a.data, a.scale, b.data, b.scale)
        compiled, compiled_mm = torch.compile(multiply), torch.compile(torch.mm)
        calls = {
            "octofold.gemm(out=)": lambda: octofold.gemm(a, b, out=out),
            "torch.mm(out=)": lambda: torch.mm(x, w, out=wide),
            "compiled octofold.gemm": lambda: compiled(*parts),
            "compiled torch.mm": lambda: compiled_mm(x, w),
        }
        for call in calls.values():
            for _ in range(3):
                call()
        self.samplers = {name: self.host_sampler(call) for name, call in calls.items()}
        return list(calls)

    def host_sampler(self, call):
        synchronize = self.torch.cuda.synchronize if self.on_gpu else lambda: None

        def sample():
            synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            seconds = (time.perf_counter() - start) / HOST_CALLS
            synchronize()
            return seconds

        return sample

    def sample(self, name):
        if self.on_gpu or name != "product":
            return self.samplers[name]()
        start = time.perf_counter()
        self.samplers[name]()
        return time.perf_counter() - start


def serve(device):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    worker = Worker(device)
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, request)(*arguments)), file=answers, flush=True)


# ---- The comparison -----------------------------------------------------------------------------


class Build:
    """The process of one build, from here."""

    def __init__(self, site, device):
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", "--device", device],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        described = self.ask("describe")
        if not Path(described["octofold"]).resolve().is_relative_to(Path(site).resolve()):
            sys.exit(f"{site}: octofold came from {described['octofold']}")
        self.description = f"{described['device']}, torch {described['torch']}"

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a worker ended with exit code {self.process.wait()}")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def in_turns(builds, names, rounds):
    """Samples by (build's index, name): old new, then new old, and so on."""
    samples = {}
    for round_ in range(rounds):
        for turn in range(len(builds)):
            index = (round_ + turn) % len(builds)
            for name in names:
                samples.setdefault((index, name), []).append(builds[index].ask("sample", name))
    return samples


def spread(seconds):
    """Half the quartile range over the median."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 2 / middle


def compare_products(builds, shapes, rounds):
    print(f"{'M,N,K':<18} {'old µs':>9} {'±':>5} {'new µs':>9} {'±':>5} {'new/old':>8}", flush=True)
    rows = []
    for shape in shapes:
        errors = [build.ask("product", shape) for build in builds]
        if not max(errors) < 5e-3:  # NaN is wrong too
            sys.exit(f"{shape}: relative errors {errors}")
        samples = in_turns(builds, ["product"], rounds)
        old, new = (samples[index, "product"] for index in range(2))
        ratio = statistics.median(new) / statistics.median(old)
        rows.append({"shape": shape, "old": old, "new": new, "ratio": ratio})
        print(
            f"{','.join(map(str, shape)):<18} {statistics.median(old) * 1e6:9.2f} "
            f"{spread(old):5.1%} {statistics.median(new) * 1e6:9.2f} {spread(new):5.1%} "
            f"{ratio:8.3f}",
            flush=True,
        )
    return rows


def compare_hosts(builds):
    names, _ = (build.ask("host") for build in builds)
    samples = in_turns(builds, names, HOST_ROUNDS)
    print(f"\n{'host time':<24} {'old µs':>9} {'±':>5} {'new µs':>9} {'±':>5} {'new/old':>8}")
    rows = []
    for name in names:
        old, new = (samples[index, name] for index in range(2))
        ratio = statistics.median(new) / statistics.median(old)
        rows.append({"call": name, "old": old, "new": new, "ratio": ratio})
        print(
            f"{name:<24} {statistics.median(old) * 1e6:9.2f} {spread(old):5.1%} "
            f"{statistics.median(new) * 1e6:9.2f} {spread(new):5.1%} {ratio:8.3f}"
        )
    return rows


def shape_of(text):
    m, n, k = (int(size) for size in text.split(","))
    return m, n, k


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sites", nargs="*", metavar="SITE", help="of the old build, of the new one")
    parser.add_argument("--shape", type=shape_of, action="append", metavar="M,N,K")
    parser.add_argument("--rounds", type=int, default=13)
    parser.add_argument("--bound", type=float, default=1.01, help="new / old of any shape")
    parser.add_argument("--json", type=Path, help="a file for all samples")
    parser.add_argument("--device", default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.device)
        return 0
    if len(arguments.sites) != 2 or arguments.rounds < 2:
        parser.error("expected two SITEs and at least 2 rounds")
    builds = [Build(site, arguments.device) for site in arguments.sites]
    print(builds[1].description)
    products = compare_products(builds, arguments.shape or SHAPES, arguments.rounds)
    hosts = compare_hosts(builds)
    for build in builds:
        build.end()
    if arguments.json:
        arguments.json.write_text(json.dumps({"products": products, "hosts": hosts}) + "\n")
    slower = [row for row in products if row["ratio"] > arguments.bound]
    worst = max(products, key=lambda row: row["ratio"])
    print(f"\nworst {worst['ratio']:.3f} at {worst['shape']}; {len(slower)} over {arguments.bound}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
