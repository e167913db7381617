"""Implementations of an expert layer: in BF16 by a loop over experts and by torch's grouped
products, and Octofold's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import octofold
import octofold.nn
import torch
from grouped_products.peers import grouped_mm
from torch import Tensor
from torch.nn import functional

from .cases import Inputs

Forward: TypeAlias = Callable[[Inputs], Tensor]
LOOP, GROUPED, COMPILED = "loop over experts", "torch._grouped_mm", "torch._grouped_mm compiled"


@dataclass(frozen=True)
class Variant:
    name: str
    build: Callable[[Inputs], tuple[Forward, Sequence[Tensor]]]
    """Returns forward for the inputs, and the weights w13 and w2 that its gradients are by."""
    is_ours: bool = False
    in_graph: bool = True


def loop_over_experts(inputs: Inputs) -> Tensor:
    out = torch.zeros_like(inputs.x)
    for expert in range(len(inputs.w13)):
        tokens, slots = torch.where(inputs.ids == expert)
        if len(tokens) == 0:
            continue
        gate, up = functional.linear(inputs.x[tokens], inputs.w13[expert]).chunk(2, dim=-1)
        rows = functional.linear(functional.silu(gate) * up, inputs.w2[expert])
        out = out.index_add(0, tokens, rows * inputs.weights[tokens, slots, None].to(rows.dtype))
    return out


def grouped_products(inputs: Inputs) -> Tensor:
    """No size is read by the host."""
    experts, slots = len(inputs.w13), inputs.ids.shape[1]
    flat = inputs.ids.flatten()
    order = flat.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    sizes = torch.histc(flat.float(), bins=experts, min=0, max=experts - 1)
    ends = sizes.cumsum(0).int()
    rows = inputs.x[order // slots]
    gate, up = grouped_mm(rows, inputs.w13.transpose(1, 2), ends).chunk(2, dim=-1)
    rows = grouped_mm(functional.silu(gate) * up, inputs.w2.transpose(1, 2), ends)
    rows = rows[places].unflatten(0, (-1, slots))
    return (rows * inputs.weights.to(rows.dtype).unsqueeze(-1)).sum(dim=1)


def plain(forward: Forward) -> Callable[[Inputs], tuple[Forward, Sequence[Tensor]]]:
    return lambda inputs: (forward, (inputs.w13, inputs.w2))


def compiled(inputs: Inputs) -> tuple[Forward, Sequence[Tensor]]:
    function = torch.compile(grouped_products, dynamic=False)
    return function, (inputs.w13, inputs.w2)


def by_octofold(
    recipe: str, routes: bool = False
) -> Callable[[Inputs], tuple[Forward, Sequence[Tensor]]]:
    """routes: top_k() of the logits is part of it."""

    def build(inputs: Inputs) -> tuple[Forward, Sequence[Tensor]]:
        trains = inputs.w13.requires_grad
        module = octofold.nn.Experts.from_weights(inputs.w13, inputs.w2, recipe=recipe)
        weights = (module.gate_up_proj, module.down_proj)
        for weight in weights:
            weight.requires_grad_(trains)

        def forward(given: Inputs) -> Tensor:
            if not routes:
                return module(given.x, given.ids, given.weights)
            chosen = octofold.ops.top_k(given.logits, given.ids.shape[1], normalize=True)
            return module(given.x, *chosen)

        return forward, weights

    return build


def of_checkpoint(inputs: Inputs) -> tuple[Forward, Sequence[Tensor]]:
    """Weights that are FP8, as a checkpoint has them: none is cast."""
    parts = [octofold.quantize(w, "128x128") for w in (inputs.w13, inputs.w2)]

    def forward(given: Inputs) -> Tensor:
        ids, weights = octofold.ops.top_k(given.logits, given.ids.shape[1], normalize=True)
        result: Tensor = octofold.experts(given.x, ids, weights, *parts)
        return result

    return forward, ()


def variants(recipes: Sequence[str], trains: bool, loop: bool, peers: bool) -> list[Variant]:
    chosen = []
    if peers:
        chosen = [Variant(GROUPED, plain(grouped_products)), Variant(COMPILED, compiled)]
        if loop:
            chosen.append(Variant(LOOP, plain(loop_over_experts), in_graph=False))
    for recipe in recipes:
        name = f"octofold {recipe}"
        chosen.append(Variant(name, by_octofold(recipe), is_ours=True))
        if not trains:
            chosen.append(Variant(f"{name}, top_k", by_octofold(recipe, routes=True), is_ours=True))
    if not trains:
        chosen.append(Variant("octofold, FP8 weights, top_k", of_checkpoint, is_ours=True))
    return chosen
