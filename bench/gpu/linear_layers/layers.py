"""One linear layer, casts included; its products alone; inference; the time of the host."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import octofold.nn
import torch
from common.measure import Build, Implementation, geometric_mean, measure
from common.operands import calls_of, normal, relative_error, sets_of
from common.run import Run, print_table, text_of
from octofold._timing import Method
from octofold.ops import Target, cast
from torch import Tensor, nn

from .checks import BFLOAT16_ERRORS, FP8_ERRORS, layer_errors
from .variants import BFLOAT16, Variant, new_linear, trained

PASSES = ("forward", "both", "no_grad")
"""Forward of a training step, with what backward will need; forward and backward; without
gradients."""
HOST = Method("host", rest=0.0, passes=50)
HOST_SHAPE = (64, 128, 512)  # tokens, out, in: done before the host has queued the next one

Shape = tuple[int, ...]  # tokens, out, in


def operands(run: Run, shape: Shape) -> tuple[Tensor, Tensor]:
    """x [tokens, in] and dy [tokens, out]."""
    tokens, out_features, in_features = shape
    dy = (1e-3 * torch.randn(tokens, out_features, device=run.device)).bfloat16()
    return normal(run, tokens, in_features).requires_grad_(), dy


def pass_of(name: str, model: nn.Module, x: Tensor, dy: Tensor) -> Any:
    if name == "both":
        return trained(model, x, dy)
    with torch.set_grad_enabled(name == "forward"):
        return model(x)


def measure_layers(
    shapes: Sequence[Shape], variants: Sequence[Variant], passes: Sequence[str], run: Run
) -> None:
    for shape in run.cases(shapes):
        size = 2 * shape[0] * (shape[1] + shape[2])
        sets = sets_of(partial(operands, run, shape), size, run)
        model = new_linear(*shape[1:], run.device)
        built = {}
        for name in passes:
            builds = layer_builds(variants, name, model, built, sets)
            facts = {"shape": text_of(shape), "passes": name}
            measure(run, "layer", f"{text_of(shape)} {name}", builds, BFLOAT16, **facts)


def layer_builds(
    variants: Sequence[Variant], passes: str, model: nn.Module, built: dict, sets: list
) -> Iterator[Build]:
    """built: layers that other passes have too."""

    def make(variant: Variant) -> Implementation:
        if variant not in built:
            built[variant] = variant.build(model)
        layer = built[variant]

        def errors() -> dict[str, float]:
            x, dy = sets[0]
            y, (dx, dw) = trained(layer, x, dy)
            return layer_errors(x, model[0].weight, dy, y, dx, dw)

        calls = calls_of(partial(pass_of, passes, layer), sets)
        limits = FP8_ERRORS if variant.is_fp8 else BFLOAT16_ERRORS
        return Implementation(calls, errors, *limits)

    for variant in variants:
        yield Build(variant.name, partial(make, variant), variant.is_ours)


def product_of(recipe_name: str, product: str, sizes: Shape, run: Run):
    """One product of a step, of operands that are cast already; "bfloat16" too."""
    m, n, k = sizes
    a, b = (normal(run, rows, k) for rows in (m, n))
    out = torch.empty(m, n, dtype=torch.bfloat16, device=run.device)
    recipe = None if recipe_name == "bfloat16" else octofold.nn.recipes.NAMED[recipe_name]
    kinds = None if recipe is None else getattr(recipe, product)
    call = partial(torch.mm, a, b.t(), out=out)
    if kinds is not None:
        factors = b.abs().amax(1).float() if kinds.two_level else None
        b8 = cast(b, rows=Target(kinds.b, channel_scale=factors)).rows
        a8 = octofold.quantize(a, kinds.a)
        call = partial(octofold.gemm, a8, b8, out=out, fast_accumulation=kinds.fast_accumulation)

    def error() -> float:
        call()
        some = slice(0, 64)
        return relative_error(out[some], a[some].double() @ b.double().T)

    return Implementation([call], error, FP8_ERRORS[0])


def measure_products(shapes: Sequence[Shape], recipes: Sequence[str], run: Run) -> None:
    """The three products of a step alone: what no layer of these recipes can be faster than."""
    for shape in run.cases(shapes):
        tokens, out_features, in_features = shape
        for product, sizes in (
            ("output", (tokens, out_features, in_features)),
            ("grad_input", (tokens, in_features, out_features)),
            ("grad_weight", (out_features, in_features, tokens)),
        ):
            builds = [
                Build(
                    name,
                    partial(product_of, name, product, sizes, run),
                    name != "bfloat16",
                    operations=2 * math.prod(sizes),
                )
                for name in ("bfloat16", *recipes)
            ]
            measure(run, "products", f"{text_of(shape)} {product}", builds, "bfloat16")


def inference_builds(m: int, wide: list[nn.Linear], narrow: list[nn.Module], run: Run):
    inputs = [normal(run, m, wide[0].in_features) for _ in wide]

    def make(layers: Sequence[nn.Module], limits: tuple[float, float]) -> Implementation:
        def error() -> float:
            return relative_error(
                layers[0](inputs[0]), inputs[0].double() @ wide[0].weight.double().T
            )

        calls = [partial(layer, x) for layer, x in zip(layers, inputs, strict=True)]
        return Implementation(calls, error, *limits)

    yield Build(BFLOAT16, partial(make, wide, BFLOAT16_ERRORS))
    yield Build("octofold", partial(make, narrow, FP8_ERRORS), True)


@torch.no_grad()
def measure_inference(layers: Sequence[Shape], tokens: Sequence[int], run: Run) -> None:
    """layers: (out, in). Weights and activations go round sets larger than the L2 cache."""
    ratios: dict[int, list[float]] = {m: [] for m in tokens}
    for out_features, in_features in run.cases(layers):

        def plain(out_features: int = out_features, in_features: int = in_features) -> nn.Linear:
            layer = nn.Linear(in_features, out_features, False, run.device, torch.bfloat16)
            nn.init.normal_(layer.weight, std=0.02)
            return layer

        wide = sets_of(plain, out_features * in_features, run)
        narrow = [octofold.nn.InferenceLinear.from_linear(layer) for layer in wide]
        for m in tokens:
            name = f"{m},{out_features},{in_features}"
            builds = inference_builds(m, wide, narrow, run)
            found = measure(run, "inference", name, builds, BFLOAT16, tokens=m)
            if len(found) == 2:
                ratios[m].append(found[BFLOAT16].microseconds / found["octofold"].microseconds)
    rows = [
        [str(m), *(f"{r:.2f}" for r in ratios[m]), geometric_mean(ratios[m])]
        for m in tokens
        if len(ratios[m]) == len(layers)
    ]
    columns = ["tokens", *map(text_of, layers), "geometric mean"]
    print_table("Inference, × BF16's rate", columns, rows)


def host_builds(recipes: Sequence[str], passes: str, run: Run) -> Iterator[Build]:
    _, out_features, in_features = HOST_SHAPE
    plain = nn.Linear(in_features, out_features, False, run.device, torch.bfloat16)
    x, dy = operands(run, HOST_SHAPE)

    def make(recipe: str | None) -> Implementation:
        layer: nn.Module = plain
        if recipe is not None:
            layer = octofold.nn.Linear.from_linear(plain, recipe, force_fp8=True)

        def error() -> float:
            for _ in range(4):
                pass_of(passes, layer, x, dy)
            return relative_error(layer(x), x.double() @ plain.weight.double().T)

        call = partial(pass_of, passes, layer, x, dy)
        return Implementation([call], error, FP8_ERRORS[0], method=HOST)

    yield Build("torch.nn.Linear", partial(make, None))
    for recipe in recipes:
        yield Build(f"octofold {recipe}", partial(make, recipe), True)


def measure_host(recipes: Sequence[str], run: Run) -> None:
    """Measures what an eager layer costs the host."""
    for passes in run.cases(("forward", "both")):
        measure(run, "host", passes, host_builds(recipes, passes, run), "torch.nn.Linear")
