"""Expert layers beside BF16's:

    python bench/gpu/run.py experts RESULTS.jsonl
    python bench/gpu/run.py experts RESULTS.jsonl --sections layers --only 64, 16384,
    python bench/gpu/run.py experts RESULTS.jsonl --sections few kept

A layer is tokens,experts,top-k,hidden,inner: SwiGLU, routing from a Zipf distribution. Sections:
    layers  forward and forward + backward: as it is called, wall clock (the host's part is in it),
            and of a CUDA graph, where one can be captured; BF16 by torch's grouped products, eager
            and compiled, and by a loop over experts. "top_k": the choice of experts is part of it
    few     with few tokens, forward + backward in a CUDA graph: casts of weights in each step (of
            the experts that have tokens), held, renewed behind the step
            (octofold.nn.cast_after_step)

Results are first checked against FP64: the output and the gradients of some tokens, those of one
expert's weights. "speed" is that over torch._grouped_mm, eager.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import octofold.nn
import torch
from common.expert_layers import (
    COMPILED,
    GROUPED,
    Expected,
    Forward,
    Inputs,
    Layer,
    Variant,
    compiled,
    forward_of,
    grouped_products,
    inputs,
    module_of,
    plain,
    variants,
)
from common.measure import Build
from common.measure import measure as measure_builds
from common.run import Run, add_choices
from octofold._timing import GRAPH, WALL, Call, Method
from octofold_tool.gpu.measuring import Implementation
from torch import Tensor

ROUNDS, SECONDS = 11, 540
SECTIONS = ("layers", "few")
PASSES = ("forward", "both")
BFLOAT16_ERRORS = (3e-2, 0.0)
FP8_ERRORS = (0.2, 2e-2)  # of products in a row
LAYERS = (
    Layer(16384, 32, 1, 7168, 2048),
    Layer(8192, 128, 8, 2048, 768),
    Layer(8192, 8, 2, 4096, 14336),
    Layer(64, 64, 6, 2048, 1408),
    # The work of one of the ranks that DeepGEMM's mega-MoE cases are spread over.
    Layer(8192, 32, 6, 4096, 2048, trains=False),
    Layer(8192, 48, 6, 7168, 3072, trains=False),
)
# Layers in which casts of weights weigh most: Qwen3-30B-A3B's experts, and twice as many smaller
# ones; and layers in which they weigh less.
FEW_TOKENS = (
    Layer(64, 128, 8, 2048, 768),
    Layer(512, 128, 8, 2048, 768),
    Layer(4096, 256, 8, 2048, 512),
    Layer(8192, 128, 8, 2048, 768),
)
TINY_LAYERS = (Layer(48, 4, 2, 256, 128), Layer(40, 3, 1, 128, 256, trains=False))


def add_options(parser):
    add_choices(parser, "--sections", SECTIONS)
    add_choices(parser, "--passes", PASSES)
    add = parser.add_argument
    add("--only", nargs="+", default=[""], metavar="TEXT", help="what layers' names begin with")
    add("--recipes", nargs="+", default=["blockwise"])
    add("--zipf", type=float, default=1.0, metavar="EXPONENT")
    add("--no-peers", action="store_true")
    add("--no-loop", action="store_true", help="over experts, which takes longest")


def cases(run: Run) -> Iterator[tuple[Callable[..., None], Layer, str]]:
    """The function that measures, a layer and its passes."""
    torch._dynamo.config.recompile_limit = 64
    chosen = {
        "layers": (measure_layer, LAYERS, run.options.passes),
        "few": (measure_few, FEW_TOKENS, ["both"]),
    }
    for section in run.options.sections:
        function, layers, passes = chosen[section]
        for each in passes:
            for layer in layers if run.on_gpu else TINY_LAYERS:
                wanted = layer.name.startswith(tuple(run.options.only))
                if wanted and (each == "forward" or layer.trains):
                    yield function, layer, each


def measure(run: Run, case: tuple[Callable[..., None], Layer, str]) -> None:
    function, layer, passes = case
    function(run, layer, passes)


@dataclass
class Step:
    """A forward, and the backward of what trains; then what follows."""

    forward: Forward
    weights: Sequence[Tensor]
    given: Inputs
    trains: bool = True
    after: Call | None = None

    def __call__(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output and the gradients of x, the routing weights, w13 and w2."""
        given = self.given
        gradients: tuple[Tensor, ...] = ()
        with torch.set_grad_enabled(self.trains):
            y = self.forward(given)
            if self.trains:
                leaves = (given.x, given.weights, *self.weights)
                gradients = torch.autograd.grad(y, leaves, given.dy)
        if self.after is not None:
            self.after()
        return y, gradients

    def errors(self, expected: Expected) -> dict[str, float]:
        y, gradients = self()
        if self.trains:
            return expected.errors(y, gradients)
        return {"y": expected.error_of_output(y)}


def implementation(
    step: Step, is_ours: bool, expected: Expected, method: Method | None
) -> Implementation:
    limits = FP8_ERRORS if is_ours else BFLOAT16_ERRORS
    return Implementation([step], partial(step.errors, expected), *limits, method=method)


def measure_layer(run: Run, layer: Layer, passes: str) -> None:
    trains, options = passes == "both", run.options
    given = inputs(layer, options.zipf, run.device, trains)
    expected = Expected(given, trains)
    steps: dict[str, Step] = {}  # for each way to call it

    def make(variant: Variant, method: Method) -> Implementation:
        if variant.name not in steps:
            steps[variant.name] = Step(*variant.build(given), given, trains)
        return implementation(steps[variant.name], variant.is_ours, expected, method)

    modes = {"eager": WALL, "graph": GRAPH} if run.on_gpu else {"eager": WALL}
    operations = layer.operations * (3 if trains else 1)
    builds = (
        Build(
            f"{variant.name}, {mode}",
            partial(make, variant, method),
            variant.is_ours,
            operations=operations,
        )
        for variant in variants(options.recipes, trains, not options.no_loop, not options.no_peers)
        for mode, method in modes.items()
        if mode != "graph" or variant.in_graph
    )
    case, facts = f"{layer.name} {passes}", {"layer": layer.name, "passes": passes}
    measure_builds(run, "layer", case, builds, f"{GROUPED}, eager", **facts)


@dataclass(frozen=True)
class Way:
    """How a layer is stepped."""

    name: str
    make: Callable[[Inputs], Step]
    is_ours: bool = False


def casting(recipe: str, given: Inputs) -> Step:
    """Each forward casts the weights of the experts that have tokens."""
    made = forward_of(module_of(given, recipe))
    return Step(*made, given)


def held(recipe: str, casts: bool, given: Inputs) -> Step:
    """By cast_after_step(). casts: with what a step of the optimizer adds."""
    module = module_of(given, recipe)
    handle = after_step(module)
    after = handle.casts if casts else None
    return Step(*forward_of(module), given, after=after)


def after_step(module: octofold.nn.Experts) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), 0.0)
    return octofold.nn.cast_after_step(optimizer, module)


def ways(run: Run) -> Iterator[Way]:
    recipe, peers = run.options.recipes[0], not run.options.no_peers
    name = f"octofold {recipe}"

    def by_torch(build: Any, given: Inputs) -> Step:
        return Step(*build(given), given)

    if peers:
        yield Way(GROUPED, partial(by_torch, plain(grouped_products)))
        yield Way(COMPILED, partial(by_torch, compiled))
    ours = partial(Way, is_ours=True)
    yield ours(f"{name}, casts in it", partial(casting, recipe))
    yield ours(f"{name}, casts held", partial(held, recipe, False))
    yield ours(f"{name}, casts behind it", partial(held, recipe, True))


def measure_few(run: Run, layer: Layer, passes: str) -> None:
    given = inputs(layer, run.options.zipf, run.device, True)
    expected = Expected(given, True)
    method = GRAPH if run.on_gpu else None

    def make(way: Way) -> Implementation:
        return implementation(way.make(given), way.is_ours, expected, method)

    builds = [
        Build(
            way.name,
            partial(make, way),
            way.is_ours,
            operations=3 * layer.operations,
        )
        for way in ways(run)
    ]
    measure_builds(run, "few", f"{layer.name} {passes}", builds, GROUPED, layer=layer.name)
