"""Two or more builds of Octofold beside each other on one GPU, in one run:

    python bench/gpu/compare_wheels.py OLD_SITE NEW_SITE [--json FILE] [--bound 1.01]
    python bench/gpu/compare_wheels.py SITE SITE ... --sections casts

Each SITE is a folder that a wheel was unpacked into (pip install --target). A process for each
holds the same operands, and they take turns. All are measured by the last one's timing
module. Sections:
    products  the shapes of docs/notes/products.md
    host      host time of a call, with torch.mm(out=) in the same turns
    casts     of arrays

Prints times over the first build's; exit code 1 if one of the last's takes longer than --bound
times as long (but for host). Nothing of Octofold is imported here but that and
the tool's shapes.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

# ---- Sections -----------------------------------------------------------------------------------
#
# Each is run in the process of one build, and takes the worker and a case. It returns, by name:
# calls of equal work with operands of their own, a function that gives the relative error of the
# first, and the method.

HOST_SHAPE = (64, 128, 512)  # done before the host has queued the next one


def normals(worker):
    """Makes BF16 numbers, the same in each process. Torch alone allocates: where operands lie moves
    the time of a small product by up to 3 %."""
    torch, device = worker.torch, worker.device
    generator = torch.Generator(device).manual_seed(5)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device).bfloat16()


def sets_of(worker, make, size):
    """Makes as many operands as no cache holds."""
    count = max(2, worker.timing.set_count(size)) if worker.on_gpu else 2
    return [make() for _ in range(count)]


def distance(worker, actual, expected):
    norm = worker.torch.linalg.norm
    return float(norm(actual.double() - expected) / norm(expected.double()))


def product_error(worker, a, b, out):
    """Returns the error of some rows, against FP64."""
    expected = a.dequantize()[:64].double() @ b.dequantize().double().T
    return distance(worker, out[:64], expected)


def operands(worker, m, n, k):
    normal, quantize = normals(worker), worker.octofold.quantize
    out = worker.torch.empty(m, n, dtype=worker.torch.bfloat16, device=worker.device)
    return lambda: (quantize(normal(m, k)), quantize(normal(n, k), "128x128"), out.clone())


def products(worker, m, n, k):
    sets = sets_of(worker, operands(worker, m, n, k), (m + n) * k + 2 * m * n)
    calls = [partial(worker.octofold.gemm, a, b, out=out) for a, b, out in sets]
    return {"gemm": (calls, partial(product_error, worker, *sets[0]), worker.timing.GRAPH)}


def host(worker, m, n, k):
    torch, octofold = worker.torch, worker.octofold
    a, b, out = operands(worker, m, n, k)()
    x, w = a.dequantize("bfloat16"), b.dequantize("bfloat16").T
    method = worker.timing.Method("host", rest=0.0, passes=200)
    named = {
        "octofold.gemm(out=)": partial(octofold.gemm, a, b, out=out),
        "torch.mm(out=)": partial(torch.mm, x, w, out=torch.empty_like(out)),
        "octofold.quantize": partial(octofold.quantize, x),
        "octofold.quantize(out=)": partial(octofold.quantize, x, out=octofold.quantize(x)),
    }
    error = partial(product_error, worker, a, b, out)
    return {name: ([call], error, method) for name, call in named.items()}


def casts(worker, rows, cols):
    ops = worker.octofold.ops
    normal = normals(worker)
    xs = sets_of(worker, partial(normal, rows, cols), 2 * rows * cols)
    both = {"rows": "1x128 torchao", "transposed": "1x128 torchao"}
    options = {
        "rows": {"rows": "1x128"},
        "128x128": {"rows": "128x128"},
        "channel": {"rows": "channel"},
        "both": both,
        "both, amax": {**both, "columns": "amax"},
    }

    def made(how):
        def error():
            return distance(worker, ops.cast(xs[0], **how).rows.dequantize(), xs[0].double())

        return [partial(ops.cast, x, **how) for x in xs], error, worker.timing.GRAPH

    return {name: made(how) for name, how in options.items()}


SECTIONS = {  # the function, its cases, and the largest relative error
    "products": (products, None, 5e-3),  # the shapes of --shape, or of the tool's deepseek-v3
    "host": (host, [HOST_SHAPE], 5e-3),
    "casts": (casts, [(4096, 7168), (300, 2048)], 0.05),
}

# ---- The processes and their turns --------------------------------------------------------------

TIMING = "OCTOFOLD_BENCH_TIMING"


def module_of(site: str | Path, file: str = "octofold/_timing.py") -> ModuleType:
    """A module of a build, by itself: by its timing module others are measured, too."""
    name = "octofold_" + Path(file).stem
    spec = importlib.util.spec_from_file_location(name, Path(site) / file)
    if spec is None or spec.loader is None:
        sys.exit(f"{site}: no {file}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes_of(site: Path) -> Sequence[Sequence[int]]:
    return module_of(site, "octofold_tool/gemm_options.py").SUITES["deepseek-v3"]


class Build:
    """The process of one build, from here: this script again, with --worker."""

    def __init__(self, site: Path, timing_site: Path, device: str) -> None:
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths), TIMING: str(timing_site)}
        self.site = site
        self.process = subprocess.Popen(
            [sys.executable, sys.argv[0], "--worker", "--device", device],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        described = self.ask("describe")
        if not Path(described["octofold"]).resolve().is_relative_to(site.resolve()):
            sys.exit(f"{site}: octofold came from {described['octofold']}")
        self.description = f"{described['device']}, torch {described['torch']}"

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.site}: its process ended with exit code {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(worker: Any) -> None:
    """Answers requests, each the name of a method and arguments: a line of JSON in, one out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, request)(*arguments)), file=answers, flush=True)


class Worker:
    """In the process of a build."""

    def __init__(self, device: str) -> None:
        import octofold
        import torch

        self.octofold, self.torch, self.device = octofold, torch, torch.device(device)
        self.timing = module_of(os.environ[TIMING])
        self.on_gpu = self.device.type == "cuda"
        self._samplers: dict[str, Callable[[], float]] = {}

    def describe(self) -> dict[str, str]:
        name = self.torch.cuda.get_device_name() if self.on_gpu else "the CPU"
        return {"octofold": self.octofold.__file__, "torch": self.torch.__version__, "device": name}

    def prepare(self, section: str, case: Sequence[int]) -> dict[str, float]:
        """The relative error of each implementation; then sample() has it by name."""
        self._samplers = {}
        errors = {}
        made = SECTIONS[section][0](self, *case)
        for name, (calls, error, method) in made.items():
            for call in (*calls, *calls):
                call()
            errors[name] = error()
            method = method if self.on_gpu or method.kind == "host" else self.timing.CPU
            self._samplers[name] = method.sampler(calls)
        return errors

    def sample(self, name: str) -> float:
        return self._samplers[name]()


def compare(builds, timing, section, case, rounds):
    """By name: seconds of each build, samples in turns."""
    for build in builds:
        errors = build.ask("prepare", section, case)
        if not all(error < SECTIONS[section][2] for error in errors.values()):  # NaN is wrong too
            sys.exit(f"{build.site}: {section} {case}: relative errors {errors}")
    samplers = [partial(build.ask, "sample", name) for name in errors for build in builds]
    samples = iter(timing.take_turns(samplers, rounds))
    return {name: [next(samples) for _ in builds] for name in errors}


def show(timing, section, case, samples):
    """Ratios by name."""
    ratios = {}
    for name, of_builds in samples.items():
        medians = [statistics.median(seconds) for seconds in of_builds]
        ratios[name] = [median / medians[0] for median in medians]
        times = "  ".join(
            f"{median * 1e6:9.2f} ±{timing.spread(seconds):.1%} {ratio:6.3f}"
            for median, seconds, ratio in zip(medians, of_builds, ratios[name], strict=True)
        )
        print(f"{section:8} {','.join(map(str, case)):22} {name:22} {times}", flush=True)
    return ratios


def shape_of(text):
    m, n, k = (int(size) for size in text.split(","))
    return m, n, k


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sites", nargs="*", type=Path, metavar="SITE", help="the oldest build first")
    add("--sections", nargs="+", choices=SECTIONS, default=["products", "host"])
    add("--shape", type=shape_of, action="append", metavar="M,N,K", help="of products")
    add("--rounds", type=int, default=13)
    add("--bound", type=float, default=1.01, help="new / old of a kernel's time")
    add("--json", type=Path, help="a file for all samples")
    add("--device", default="cuda", help="cpu: to try the script itself")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(Worker(arguments.device))
        return 0
    if len(arguments.sites) < 2 or arguments.rounds < 2:
        parser.error("expected two SITEs and 2 rounds at least")
    newest = arguments.sites[-1]
    timing = module_of(newest)
    builds = [Build(site, newest, arguments.device) for site in arguments.sites]
    print(f"{builds[-1].description}; µs, ±, time over the first's", flush=True)
    found, ratios = [], {}
    for section in arguments.sections:
        for case in SECTIONS[section][1] or arguments.shape or shapes_of(newest):
            samples = compare(builds, timing, section, case, arguments.rounds)
            found.append({"section": section, "case": case, "samples": samples})
            shown = show(timing, section, case, samples)
            if section != "host":
                ratios |= {(section, case, name): of[-1] for name, of in shown.items()}
    for build in builds:
        build.end()
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    slower = [case for case, ratio in ratios.items() if ratio > arguments.bound]
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        print(f"\nworst {ratios[worst]:.3f} at {worst}; {len(slower)} over {arguments.bound}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
