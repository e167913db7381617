"""Expert layers beside BF16's, measured in one run:

    python bench/gpu/experts.py experts.jsonl
    python bench/gpu/experts.py experts.jsonl --sections layers --only 64, 16384,
    python bench/gpu/experts.py experts.jsonl --sections steps host
    python bench/gpu/experts.py tiny.jsonl --device cpu --rounds 2     to try the script

A layer is tokens,experts,top-k,hidden,inner: SwiGLU, routing from a Zipf distribution. Sections:
    layers  forward and forward + backward: as it is called, wall clock (the host's part is in it),
            and of a CUDA graph, where one can be captured; BF16 by torch's grouped products, eager
            and compiled, and by a loop over experts. "weights cast": weights are other ones in each
            step, and cast; else their casts are kept. "top_k": the choice of experts is part of it
    steps   each operation of our layer apart, in a CUDA graph, and its share of their sum
    host    time of the host in an eager call, no wait for the GPU in it; and whether one waits

Results are first checked against FP64: the output and the gradients of some tokens, those of one
expert's weights. Times are medians of rounds in which all take turns; ± is half the quartile range
over the median. A way that fails or is wrong is left out and said; exit code 1 if it was ours.
Every result goes to the JSON-lines file as it comes; tables come last: µs, and the time of
torch._grouped_mm, eager, over it.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from experts_bench.cases import LAYERS, TINY_LAYERS, Inputs, Layer, inputs
from experts_bench.checks import Expected
from experts_bench.layers import GROUPED, Forward, Way, ways
from experts_bench.steps import Steps, casts_of_weights
from experts_bench.timing import HostSampler, eager_sampler, graph_of, synchronizer
from grouped_bench.ways import Watchdog
from linear_bench.checks import require_right
from linear_bench.results import OutOfTime, Results, times_faster
from octofold_tool.gpu.timing import Call, Sampler, take_turns
from octofold_tool.measure import spread
from torch import Tensor

SECTIONS = ("layers", "steps", "host")
PASSES = ("forward", "both")
BFLOAT16_ERRORS = (3e-2, 0.0)
FP8_ERRORS = (0.2, 2e-2)  # of products in a row
HOST_LAYERS = (Layer(64, 8, 2, 256, 256), Layer(64, 64, 6, 2048, 1408))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", type=Path, help="a file for lines of JSON")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--passes", nargs="+", choices=PASSES, default=list(PASSES))
    add("--only", nargs="+", default=[], metavar="TEXT", help="what layers' names begin with")
    add("--recipes", nargs="+", default=["blockwise"])
    add("--zipf", type=float, default=1.0, metavar="EXPONENT")
    add("--no-peers", action="store_true")
    add("--no-loop", action="store_true", help="over experts, which takes longest")
    add("--rounds", type=int, default=11)
    add("--seconds", type=float, default=540.0, help="then the rest is left out")
    add("--case-seconds", type=float, default=200.0, help="then something hangs: the end")
    add("--device", default="cuda", help="cpu: to try the script itself")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: expected at least 2")
    return options


@dataclass(frozen=True)
class Built:
    """A way, what it differentiates by, and its pass as a call."""

    way: Way
    forward: Forward
    weights: Sequence[Tensor]
    inputs: Inputs
    trains: bool

    def results(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and the gradients of x, the routing weights, w13 and w2."""
        given = self.inputs
        if not self.trains:
            with torch.no_grad():
                return self.forward(given), ()
        y = self.forward(given)
        return y, torch.autograd.grad(y, (given.x, given.weights, *self.weights), given.dy)

    def errors(self, expected: Expected) -> dict[str, float]:
        y, gradients = self.results()
        if self.trains:
            return expected.errors(y, gradients)
        return {"y": expected.error_of_output(y)}


def built(
    chosen: Sequence[Way], given: Inputs, trains: bool, results: Results, name: str
) -> Iterator[Built]:
    """Those that are right."""
    expected = Expected(given, trains)
    for way in chosen:
        results.check_time()
        try:
            one = Built(way, *way.build(given), given, trains)
            errors = one.errors(expected)
            results.add("errors", way=way.name, layer=name, trains=trains, **errors)
            require_right(errors, *(FP8_ERRORS if way.is_ours else BFLOAT16_ERRORS))
        except Exception as error:
            results.leave_out(way.name, way.is_ours, error, layer=name)
            if given.x.is_cuda:
                torch.cuda.synchronize()  # raises again if the context is lost
            continue
        yield one


def samplers_of(one: Built, device: torch.device) -> Iterator[tuple[str, Sampler]]:
    """By how it is called."""
    call: Call = one.results
    call()
    yield "eager", eager_sampler(call, device)
    if device.type == "cuda" and one.way.in_graph:
        try:
            yield "graph", graph_of(call)
        except RuntimeError as error:
            print(f"  no CUDA graph of {one.way.name}: {str(error).splitlines()[0]}", flush=True)


Cells = dict[str, dict[str, float]]
"""Microseconds by the way's name, by the layer's."""


def measure_layer(
    layer: Layer, passes: str, options: argparse.Namespace, results: Results, cells: Cells
) -> None:
    device = torch.device(options.device)
    trains = passes == "both"
    given = inputs(layer, options.zipf, device, trains)
    chosen = ways(options.recipes, trains, not options.no_loop, not options.no_peers)
    samplers = {
        f"{one.way.name}, {mode}": sampler
        for one in built(chosen, given, trains, results, layer.name)
        for mode, sampler in samplers_of(one, device)
    }
    operations = layer.operations * (3 if trains else 1)
    samples = take_turns(list(samplers.values()), options.rounds)
    medians = [statistics.median(seconds) * 1e6 for seconds in samples]
    by_name = dict(zip(samplers, medians, strict=True))
    for name, seconds in zip(samplers, samples, strict=True):
        results.add(
            "layer",
            layer=layer.name,
            passes=passes,
            way=name,
            microseconds=by_name[name],
            spread=spread(seconds),
            tflops=operations / by_name[name] * 1e-6,
        )
        cells.setdefault(name, {})[layer.name] = by_name[name]


def table_of_layers(passes: str, cells: Cells, layers: Sequence[Layer], results: Results) -> None:
    shown = [layer for layer in layers if any(layer.name in times for times in cells.values())]
    rows = []
    for name, times in cells.items():
        row = [name]
        for layer in shown:
            micro = times.get(layer.name)
            baseline = cells.get(f"{GROUPED}, eager", {}).get(layer.name)
            row.append(f"{micro:.0f} {times_faster(baseline, micro):>5}" if micro else "—")
        rows.append(row)
    for name, times in cells.items():
        if name.startswith("octofold") and name.endswith("graph"):
            factor = 3e-6 if passes == "both" else 1e-6
            rates = [
                f"{factor * layer.operations / times[layer.name]:.0f}"
                if layer.name in times
                else "—"
                for layer in shown
            ]
            rows.append([f"TFLOPS of {name}", *rates])
    title = {"forward": "Forward", "both": "Forward + backward"}[passes]
    columns = [f"µs, × {GROUPED}", *(layer.name for layer in shown)]
    results.table(f"{title}, tokens,experts,top-k,hidden,inner", columns, rows)


def measure_steps(layer: Layer, passes: str, options: argparse.Namespace, results: Results) -> None:
    device = torch.device(options.device)
    given = inputs(layer, options.zipf, device, trains=False)
    recipe = options.recipes[0]
    steps = Steps(layer, given, recipe)
    calls = steps.training() if passes == "both" else steps.inference()
    if passes == "both":
        calls |= casts_of_weights(given, recipe)
    one = graph_of if device.type == "cuda" else partial(eager_sampler, device=device)
    samplers = {name: one(call) for name, call in calls.items()}
    samples = take_turns(list(samplers.values()), options.rounds)
    medians = {
        name: statistics.median(seconds) * 1e6
        for name, seconds in zip(samplers, samples, strict=True)
    }
    total = sum(medians.values())
    results.add("steps", layer=layer.name, passes=passes, recipe=recipe, **medians)
    rows = [[name, f"{micro:.1f}", f"{micro / total:.1%}"] for name, micro in medians.items()]
    rows.append(["sum", f"{total:.1f}", ""])
    results.table(f"Steps of {layer.name}, {passes}, {recipe}", ["", "µs", "share"], rows)


def measure_host(layer: Layer, options: argparse.Namespace, results: Results) -> None:
    device = torch.device(options.device)
    samplers: dict[tuple[str, str], Sampler] = {}
    waits: dict[tuple[str, str], str] = {}
    for passes in options.passes:
        trains = passes == "both"
        given = inputs(layer, options.zipf, device, trains)
        chosen = ways(options.recipes, trains, loop=False, peers=not options.no_peers)
        for one in built(chosen, given, trains, results, layer.name):
            for _ in range(3):
                one.results()
            key = (one.way.name, passes)
            samplers[key] = HostSampler(one.results, synchronizer(device))
            waits[key] = waiting(one.results, device)
    samples = take_turns(list(samplers.values()), options.rounds)
    rows = []
    for (name, passes), seconds in zip(samplers, samples, strict=True):
        micro, half_range = statistics.median(seconds) * 1e6, spread(seconds)
        facts = {"microseconds": micro, "spread": half_range, "waits": waits[name, passes]}
        results.add("host", layer=layer.name, way=name, passes=passes, **facts)
        rows.append([name, passes, f"{micro:.1f} ±{half_range:.0%}", waits[name, passes]])
    results.table(f"Host time of {layer.name}", ["", "", "µs", "waits for the GPU"], rows)


def waiting(call: Call, device: torch.device) -> str:
    """Whether torch sees a call wait for the GPU."""
    if device.type != "cuda":
        return "—"
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0][:60]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no"


def tasks(
    options: argparse.Namespace, results: Results, cells: dict[str, Cells]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is to be measured, by a name."""
    on_gpu = options.device != "cpu"
    chosen = [
        layer
        for layer in (LAYERS if on_gpu else TINY_LAYERS)
        if not options.only or layer.name.startswith(tuple(options.only))
    ]
    for section in options.sections:
        if section == "host":
            for layer in HOST_LAYERS if on_gpu else TINY_LAYERS[:1]:
                yield f"host, {layer.name}", partial(measure_host, layer, options, results)
            continue
        for passes in options.passes:
            for layer in chosen:
                if passes == "both" and not layer.trains:
                    continue
                arguments = (layer, passes, options, results)
                name = f"{section}, {layer.name}, {passes}"
                if section == "layers":
                    yield name, partial(measure_layer, *arguments, cells[passes])
                else:
                    yield name, partial(measure_steps, *arguments)


def main() -> int:
    options = parsed()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64
    on_gpu = options.device != "cpu"
    results = Results(options.output, options.seconds, options.rounds)
    results.begin(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
        arguments=sys.argv[1:],
    )
    cells: dict[str, Cells] = {passes: {} for passes in options.passes}

    def show() -> None:
        for passes, times in cells.items():
            table_of_layers(passes, times, LAYERS if on_gpu else TINY_LAYERS, results)
        results.show()

    try:
        for name, task in tasks(options, results, cells):
            results.check_time()
            try:
                with Watchdog(options.case_seconds, name, show):
                    task()
            except OutOfTime:
                raise
            except Exception as error:
                results.leave_out(name, True, error)
                if on_gpu:
                    torch.cuda.synchronize()  # raises again if the context is lost
            torch._dynamo.reset()
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    except OutOfTime:
        print(f"stopped after {options.seconds:.0f} s", flush=True)
    finally:
        show()
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
