"""Expert layers beside BF16's:

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
    few     with few tokens, forward + backward in a CUDA graph: casts of weights in each step (of
            the experts that have tokens), held, renewed behind the step
            (octofold.nn.cast_after_step), and once for four micro-batches; and these casts alone
    kept    bytes that forward keeps for backward, ours and torch's, of all layers that train
    host    time of the host in an eager call, no wait for the GPU in it; and whether one waits

Results are first checked against FP64: the output and the gradients of some tokens, those of one
expert's weights. A variant that fails or is wrong is left out and said; exit code 1 if it was ours.
"speed" is that over torch._grouped_mm, eager.
"""

import sys
from collections.abc import Iterator
from functools import partial

import torch
from common.measure import Build, Implementation, measure
from common.run import Run, new_parser
from expert_layers.cases import FEW_TOKENS, LAYERS, TINY_LAYERS, Inputs, Layer, inputs
from expert_layers.checks import Expected
from expert_layers.few_tokens import Way, bytes_kept, casts_alone, ways
from expert_layers.layers import GROUPED, Variant, variants
from expert_layers.steps import Steps, casts_of_weights
from octofold._timing import GRAPH, WALL, Call, Method
from torch import Tensor

SECTIONS = ("layers", "steps", "few", "kept", "host")
PASSES = ("forward", "both")
BFLOAT16_ERRORS = (3e-2, 0.0)
FP8_ERRORS = (0.2, 2e-2)  # of products in a row
HOST_LAYERS = (Layer(64, 8, 2, 256, 256), Layer(64, 64, 6, 2048, 1408))
HOST = Method("host", rest=0.0, passes=12)  # fewer kernels in all than a stream's queue holds


def parsed():
    parser = new_parser(__doc__, rounds=11, seconds=540)
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    add("--passes", nargs="+", choices=PASSES, default=list(PASSES))
    add("--only", nargs="+", default=[""], metavar="TEXT", help="what layers' names begin with")
    add("--recipes", nargs="+", default=["blockwise"])
    add("--zipf", type=float, default=1.0, metavar="EXPONENT")
    add("--no-peers", action="store_true")
    add("--no-loop", action="store_true", help="over experts, which takes longest")
    return parser.parse_args()


class Built:
    """A variant, built of the inputs, and its pass as a call."""

    def __init__(self, variant: Variant, given: Inputs, trains: bool) -> None:
        self.forward, self.weights = variant.build(given)
        self.given, self.trains = given, trains

    def __call__(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and the gradients of x, the routing weights, w13 and w2."""
        given = self.given
        with torch.set_grad_enabled(self.trains):
            y = self.forward(given)
        if not self.trains:
            return y, ()
        return y, torch.autograd.grad(y, (given.x, given.weights, *self.weights), given.dy)

    def errors(self, expected: Expected) -> dict[str, float]:
        y, gradients = self()
        if self.trains:
            return expected.errors(y, gradients)
        return {"y": expected.error_of_output(y)}


def builds_of(
    chosen: list[Variant], given: Inputs, trains: bool, modes: dict[str, Method], operations: float
) -> Iterator[Build]:
    """Yields the builds of each variant, one for each way to call it."""
    expected = Expected(given, trains)
    built: dict[str, Built] = {}

    def make(variant: Variant, method: Method) -> Implementation:
        if variant.name not in built:
            built[variant.name] = Built(variant, given, trains)
        call = built[variant.name]
        limits = FP8_ERRORS if variant.is_ours else BFLOAT16_ERRORS
        return Implementation([call], lambda: call.errors(expected), *limits, method=method)

    for variant in chosen:
        for mode, method in modes.items():
            if mode != "graph" or variant.in_graph:
                name = f"{variant.name}, {mode}"
                made = partial(make, variant, method)
                yield Build(name, made, variant.is_ours, operations=operations)


def measure_layer(layer: Layer, passes: str, options, run: Run) -> None:
    trains = passes == "both"
    given = inputs(layer, options.zipf, run.device, trains)
    chosen = variants(options.recipes, trains, not options.no_loop, not options.no_peers)
    modes = {"eager": WALL, "graph": GRAPH} if run.on_gpu else {"eager": WALL}
    builds = builds_of(chosen, given, trains, modes, layer.operations * (3 if trains else 1))
    case = f"{layer.name} {passes}"
    measure(run, "layer", case, builds, f"{GROUPED}, eager", layer=layer.name, passes=passes)


def measure_steps(layer: Layer, passes: str, options, run: Run) -> None:
    """And their shares of the sum."""
    given = inputs(layer, options.zipf, run.device, trains=False)
    recipe = options.recipes[0]
    steps = Steps(layer, given, recipe)
    calls = steps.training() if passes == "both" else steps.inference()
    if passes == "both":
        calls |= casts_of_weights(given, recipe)
    builds = [
        Build(name, partial(Implementation, [call], lambda: 0.0, method=GRAPH), True)
        for name, call in calls.items()
    ]
    found = measure(run, "step", f"{layer.name} {passes}", builds, recipe=recipe)
    total = sum(result.microseconds for result in found.values())
    shares = (f"{name} {result.microseconds / total:.1%}" for name, result in found.items())
    print(f"sum {total:.1f} µs: {', '.join(shares)}")


def measure_few(layer: Layer, passes: str, options, run: Run) -> None:
    """Steps, then casts alone."""
    given, recipe = inputs(layer, options.zipf, run.device, True), options.recipes[0]
    expected = Expected(given, True)

    def make(way: Way) -> Implementation:
        step = way.make(given)
        limits = FP8_ERRORS if way.is_ours else BFLOAT16_ERRORS
        method = GRAPH if run.on_gpu else None
        return Implementation([step], lambda: expected.errors(*step()), *limits, method=method)

    operations = layer.operations * 3
    builds = [
        Build(way.name, partial(make, way), way.is_ours, operations=operations * way.micro_batches)
        for way in ways(recipe, not options.no_peers)
    ]
    measure(run, "few", f"{layer.name} {passes}", builds, GROUPED, layer=layer.name)
    casts = [
        Build(name, partial(Implementation, [call], lambda: 0.0, method=GRAPH), True)
        for name, call in casts_alone(given, recipe).items()
    ]
    measure(run, "few casts", f"{layer.name} casts", casts, layer=layer.name)


def report_kept(layer: Layer, passes: str, options, run: Run) -> None:
    given = inputs(layer, options.zipf, run.device, True)
    for way in ways(options.recipes[0], not options.no_peers):
        if way.micro_batches > 1 or "behind" in way.name or "compiled" in way.name:
            continue
        kept = bytes_kept(way.make(given))
        run.record("kept", case=f"{layer.name} {passes}", name=way.name, bytes=kept)
        print(f"{layer.name}: {way.name} keeps {kept / 2**20:.1f} MiB for backward")


def measure_host(layer: Layer, passes: str, options, run: Run) -> None:
    trains = passes == "both"
    given = inputs(layer, options.zipf, run.device, trains)
    chosen = variants(options.recipes, trains, loop=False, peers=not options.no_peers)
    builds = builds_of(chosen, given, trains, {"eager": HOST}, 0)
    measure(run, "host", f"{layer.name} {passes}", builds, f"{GROUPED}, eager")
    for variant in chosen if run.on_gpu else ():
        call = Built(variant, given, trains)
        call()
        print(f"  {variant.name} waits for the GPU: {waiting(call)}")


def waiting(call: Call) -> str:
    """Returns torch's error if it sees a call wait for the GPU, else "no"."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0][:60]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no"


def tasks(options, run: Run):
    """Yields the function that measures, a layer and its passes."""
    measures = {
        "layers": measure_layer,
        "steps": measure_steps,
        "few": measure_few,
        "kept": report_kept,
        "host": measure_host,
    }
    for section in options.sections:
        layers = LAYERS if run.on_gpu else TINY_LAYERS
        if section in ("few", "kept") and run.on_gpu:
            layers = FEW_TOKENS if section == "few" else dict.fromkeys((*FEW_TOKENS, *LAYERS))
        if section == "host":
            layers = HOST_LAYERS if run.on_gpu else TINY_LAYERS[:1]
        trains = section in ("few", "kept")
        for passes in ("both",) if trains else options.passes:
            for layer in layers:
                wanted = layer.name.startswith(tuple(options.only)) or section == "host"
                if wanted and (passes == "forward" or layer.trains):
                    yield measures[section], layer, passes


def main() -> int:
    options = parsed()
    torch._dynamo.config.recompile_limit = 64
    with Run(options) as run:
        for function, layer, passes in run.cases(tasks(options, run)):
            function(layer, passes, options, run)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
