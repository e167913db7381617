"""One linear layer, casts included: forward, forward and backward; its products alone; memory."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import octofold
import octofold.nn
import torch
from octofold.nn.recipes import TWO_LEVEL
from octofold_tool.gpu.timing import MIN_BYTES
from torch import Tensor, nn

from .checks import BFLOAT16_ERRORS, FP8_ERRORS, layer_errors, require_right
from .results import Results, times_faster
from .sampling import Timing, timings
from .ways import BFLOAT16, Way, new_linear, trained

Shape = tuple[int, int, int]  # tokens, out, in
PASSES = ("forward", "both", "no_grad")
"""Forward of a training step, with what backward will need; forward and backward; without
gradients."""

Operands = tuple[Tensor, Tensor]


def operands(shape: Shape, device: torch.device) -> list[Operands]:
    """Sets of x [tokens, in] and dy [tokens, out], together larger than any L2 cache."""
    tokens, out_features, in_features = shape
    count = -(-MIN_BYTES // (2 * tokens * (in_features + out_features))) if on_gpu(device) else 1
    return [
        (
            torch.randn(tokens, in_features, device=device).bfloat16().requires_grad_(),
            (1e-3 * torch.randn(tokens, out_features, device=device)).bfloat16(),
        )
        for _ in range(max(1, count))
    ]


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def pass_of(name: str, model: nn.Module, x: Tensor, dy: Tensor) -> Callable[[], object]:
    def forward() -> object:
        return model(x)

    def both() -> object:
        return trained(model, x, dy)

    def no_grad() -> object:
        with torch.no_grad():
            return model(x)

    return {"forward": forward, "both": both, "no_grad": no_grad}[name]


def release(device: torch.device) -> None:
    """Memory and compiled code of what has gone."""
    torch._dynamo.reset()
    gc.collect()
    if on_gpu(device):
        torch.cuda.empty_cache()


def built(
    ways: Sequence[Way], model: nn.Module, sets: Sequence[Operands], results: Results, **where: str
) -> dict[Way, nn.Module]:
    """The ways that work, checked against FP64."""
    x, dy = sets[0]
    layers: dict[Way, nn.Module] = {}
    for way in ways:
        results.check_time()
        try:
            layer = way.build(model)
            y, (dx, dw) = trained(layer, x, dy)
            errors = layer_errors(x, model[0].weight, dy, y, dx, dw)
            results.add("errors", way=way.name, **where, **errors)
            require_right(errors, *(FP8_ERRORS if way.is_fp8 else BFLOAT16_ERRORS))
        except Exception as error:
            results.leave_out(way.name, way.is_ours, error, **where)
            continue
        layers[way] = layer
    return layers


def measure_layers(
    shapes: Sequence[Shape],
    ways: Sequence[Way],
    passes: Sequence[str],
    device: torch.device,
    results: Results,
) -> None:
    columns = ["way", *(f"{text(shape)}\n{name}" for shape in shapes for name in passes)]
    cells: dict[tuple[str, int], str] = {}
    try:
        for place, shape in enumerate(shapes):
            sets = operands(shape, device)
            layers = built(ways, new_linear(*shape[1:], device), sets, results, shape=text(shape))
            for offset, name in enumerate(passes):
                results.check_time()
                calls = [
                    [pass_of(name, layer, x, dy) for x, dy in sets] for layer in layers.values()
                ]
                measured = timings(calls, device, results.rounds)
                del calls
                by_way = dict(zip((way.name for way in layers), measured, strict=True))
                baseline = by_way.get(BFLOAT16)
                for way, timing in by_way.items():
                    key = (way, place * len(passes) + offset)
                    cells[key] = cell(baseline, timing)
                    results.add(
                        "layer",
                        shape=text(shape),
                        passes=name,
                        way=way,
                        **asdict(timing),
                        over_bf16=baseline and baseline.microseconds / timing.microseconds,
                    )
            del sets, layers
            release(device)
    finally:
        rows = [
            [way.name, *(cells.get((way.name, i), "—") for i in range(len(columns) - 1))]
            for way in ways
        ]
        title = "A linear layer, casts counted: × BF16's rate (BF16: µs)"
        results.table(title, columns, rows if cells else [])


def text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def cell(baseline: Timing | None, timing: Timing) -> str:
    if baseline is None or timing is baseline:
        return f"{timing.microseconds:.1f} µs"
    return times_faster(baseline.microseconds, timing.microseconds)


def products_of(recipe_name: str, shape: Shape, device: torch.device) -> list[Callable[[], Tensor]]:
    """output, grad_input and grad_weight, of operands that are cast already; "bfloat16" too."""
    tokens, out_features, in_features = shape
    recipe = None if recipe_name == "bfloat16" else octofold.nn.recipes.NAMED[recipe_name]
    calls: list[Callable[[], Tensor]] = []
    kinds = (
        ("output", (tokens, out_features, in_features), "input_dtype", "weight_dtype"),
        ("grad_input", (tokens, in_features, out_features), "gradient_dtype", "weight_dtype"),
        ("grad_weight", (out_features, in_features, tokens), "gradient_dtype", "input_dtype"),
    )
    for name, (m, n, k), a_dtype, b_dtype in kinds:
        a, b = (torch.randn(rows, k, device=device).bfloat16() for rows in (m, n))
        out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
        product = None if recipe is None else getattr(recipe, name)
        if product is None:
            calls.append(lambda a=a, b=b, out=out: torch.mm(a, b.t(), out=out))
            continue
        a8 = octofold.quantize(
            a,
            octofold.Format(getattr(recipe, a_dtype), product.a, rule=recipe.profile),
        )
        kind: dict[str, Any] = {"granularity": product.b}
        if product.b == TWO_LEVEL:
            kind = {"granularity": "128x128", "channel_scale": b.abs().amax(1).float()}
        b8 = octofold.quantize(b, getattr(recipe, b_dtype), profile=recipe.profile, **kind)
        fast = product.fast_accumulation
        calls.append(
            lambda a=a8, b=b8, out=out, fast=fast: octofold.gemm(
                a, b, out=out, fast_accumulation=fast
            )
        )
    return calls


def measure_products(
    shapes: Sequence[Shape], recipes: Sequence[str], device: torch.device, results: Results
) -> None:
    """The three products of a step alone: what no layer of these recipes can be faster than."""
    rows = []
    try:
        for shape in shapes:
            results.check_time()
            names = ("bfloat16", *recipes)
            calls = [[call] for name in names for call in products_of(name, shape, device)]
            measured = timings(calls, device, results.rounds)
            per_recipe = [measured[3 * i : 3 * i + 3] for i in range(len(names))]
            baseline = [timing.microseconds for timing in per_recipe[0]]
            for name, group in zip(names, per_recipe, strict=True):
                times = [timing.microseconds for timing in group]
                facts = dict(zip(("output", "grad_input", "grad_weight"), times, strict=True))
                largest = max(timing.spread for timing in group)
                results.add("products", shape=text(shape), recipe=name, **facts, spread=largest)
                ratios = [times_faster(*pair) for pair in zip(baseline, times, strict=True)]
                rows.append(
                    [
                        f"{text(shape)} {name}",
                        *(
                            f"{time:.1f} ({ratio})"
                            for time, ratio in zip(times, ratios, strict=True)
                        ),
                        times_faster(sum(baseline), sum(times)),
                    ]
                )
            del calls
            release(device)
    finally:
        columns = ["products alone: µs (× BF16)", "output", "grad_input", "grad_weight", "all"]
        results.table("Products alone", columns, rows)
