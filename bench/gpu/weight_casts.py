"""Measures what it costs that each forward casts its weights anew: of a step of octofold.nn.Linear
the share that the weight's casts take on the GPU ("time"), and what they take of the host.

    python bench/gpu/weight_casts.py RESULTS.jsonl

On the GPU: a step (forward and backward, casts included), the weight's casts alone, and a BF16
step; operands are in several copies, so that none comes from the L2 cache. Of the host: eager steps
of a small layer, as they come and in keep_casts(). Gradients with and without kept casts are first
compared bit for bit, and results with BF16's.
"""

import sys
from contextlib import nullcontext
from functools import partial

import octofold
import torch
from common.measure import Build, Implementation, Wrong, measure
from common.operands import normal, relative_error
from common.run import Run, new_parser, text_of
from octofold._timing import Method, timings
from octofold.nn.casting.casts import cast_weight
from octofold.nn.recipes import recipe_of
from torch import Tensor

RECIPES = ("blockwise", "rowwise", "tensorwise")
SHAPES = ((8192, 4096, 4096), (8192, 14336, 4096), (2048, 4096, 4096), (16384, 2048, 2048))
COPIES = 4
TINY = ((64, 128, 256),)
HOST = Method("host", rest=0.0, passes=200)


def step(layer: torch.nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    y = layer(x)
    return y, *torch.autograd.grad(y, (x, *layer.parameters()), dy)


def layers_of(recipe, shape, count, run):
    tokens, out, features = shape
    made = []
    for _ in range(count):
        plain = torch.nn.Linear(features, out, False, run.device, torch.bfloat16)
        layer = octofold.nn.Linear.from_linear(plain, recipe, force_fp8=True)
        x = normal(run, tokens, features).requires_grad_()
        made.append((plain, layer, x, normal(run, tokens, out)))
    return made


def error_of(plain, layer, x, dy):
    expected, anew = step(plain, x, dy), step(layer, x, dy)
    with octofold.nn.keep_casts(layer):
        step(layer, x, dy)
        kept = step(layer, x, dy)
    if not all(torch.equal(left, right) for left, right in zip(anew, kept, strict=True)):
        raise Wrong("kept casts give other bits")
    return max(relative_error(*pair) for pair in zip(anew, expected, strict=True))


def on_the_gpu(run, recipe, shape):
    made = layers_of(recipe, shape, COPIES if run.on_gpu else 1, run)
    value = recipe_of("measure", recipe)
    steps = [partial(step, layer, x, dy) for _, layer, x, dy in made]
    casts = [partial(cast_weight, layer.weight, value, True, True) for _, layer, *_ in made]
    own = [partial(step, plain, x, dy) for plain, _, x, dy in made]

    def step_of_ours():
        return Implementation(steps, lambda: error_of(*made[0]), 0.08, 0.02)

    builds = [
        Build("step", step_of_ours, True),
        Build("the weight's casts", lambda: Implementation(casts, lambda: 0.0), True),
        Build("BF16's step", lambda: Implementation(own, lambda: 0.0)),
    ]
    measure(run, "weight casts", f"{text_of(shape)} {recipe}", builds, "step")


def on_the_host(run, recipe):
    ((plain, layer, x, dy),) = layers_of(recipe, (16, 128, 128), 1, run)

    def within(scope, call):
        """Samples within a scope, whose begin and end are not timed."""
        sampler = HOST.sampler([call])

        def sample():
            with scope():
                return sampler()

        call()
        return sample

    keeping = partial(octofold.nn.keep_casts, layer)
    whole = partial(step, layer, x, dy)
    samplers = {
        "torch forward": within(nullcontext, lambda: plain(x)),
        "forward": within(nullcontext, lambda: layer(x)),
        "forward, casts kept": within(keeping, lambda: layer(x)),
        "step": within(nullcontext, whole),
        "step, casts kept": within(keeping, whole),
    }
    times = {name: timing.microseconds for name, timing in timings(samplers, run.rounds).items()}
    run.record("host", recipe=recipe, microseconds=times)
    print(f"host, {recipe}, µs: {', '.join(f'{name} {time:.1f}' for name, time in times.items())}")


def main():
    options = new_parser(__doc__, rounds=15, seconds=500).parse_args()
    with Run(options) as run:
        shapes = SHAPES if run.on_gpu else TINY
        for shape, recipe in run.cases([(shape, name) for shape in shapes for name in RECIPES]):
            on_the_gpu(run, recipe, shape)
        for recipe in run.cases(RECIPES):
            on_the_host(run, recipe)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
