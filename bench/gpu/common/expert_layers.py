"""Expert layers: their sizes and inputs, results in FP64, and implementations: in BF16 by a loop
over experts and by torch's grouped products, and Octofold's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import octofold
import octofold.nn
import torch
from octofold_tool.gpu.measuring import relative_error
from torch import Tensor
from torch.nn import functional

from common.grouped_rows import grouped_mm

LOOP, GROUPED, COMPILED = "loop over experts", "torch._grouped_mm", "torch._grouped_mm compiled"
TOKENS = 24  # are compared


@dataclass(frozen=True)
class Layer:
    tokens: int
    experts: int
    top_k: int
    hidden: int
    inner: int
    trains: bool = True  # else forward only

    @property
    def name(self) -> str:
        return ",".join(map(str, (self.tokens, self.experts, self.top_k, self.hidden, self.inner)))

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k

    @property
    def operations(self) -> float:
        """Operations of forward's products; backward has twice as many."""
        return 6.0 * self.rows * self.hidden * self.inner


@dataclass(frozen=True)
class Inputs:
    """x, dy [tokens, hidden], w13 [experts, 2 · inner, hidden], w2 [experts, hidden, inner] in
    BF16; logits [tokens, experts], of which ids (int32) and weights (FP32) [tokens, k] are the
    best, weights summing to 1."""

    x: Tensor
    dy: Tensor
    w13: Tensor
    w2: Tensor
    logits: Tensor
    ids: Tensor
    weights: Tensor


def zipf_logits(layer: Layer, exponent: float, device: torch.device) -> Tensor:
    """So that experts are chosen by 1 / rank^exponent, in random order, and k different ones for
    each token (the largest of logarithms to which Gumbel noise was added)."""
    ranks = 1 + torch.randperm(layer.experts, device=device)
    noise = -torch.empty(layer.tokens, layer.experts, device=device).exponential_().log()
    return noise - exponent * ranks.float().log()


def inputs(layer: Layer, exponent: float, device: torch.device, trains: bool) -> Inputs:
    """Makes the inputs. If the layer trains, those that are differentiated require a gradient."""

    def normal(*shape: int, deviation: float = 1.0) -> Tensor:
        tensor = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return tensor.normal_(std=deviation)

    hidden, inner = layer.hidden, layer.inner
    logits = zipf_logits(layer, exponent, device)
    best = logits.topk(layer.top_k, dim=1)
    made = Inputs(
        x=normal(layer.tokens, hidden),
        dy=normal(layer.tokens, hidden, deviation=1e-3),
        w13=normal(layer.experts, 2 * inner, hidden, deviation=hidden**-0.5),
        w2=normal(layer.experts, hidden, inner, deviation=inner**-0.5),
        logits=logits,
        ids=best.indices.int(),
        weights=best.values.softmax(dim=1),
    )
    for tensor in (made.x, made.w13, made.w2, made.weights):
        tensor.requires_grad_(trains)
    return made


Forward: TypeAlias = Callable[[Inputs], Tensor]


class Expected:
    """y, dx and dweights of some tokens; dw13 and dw2 of an expert with about as many tokens as
    most."""

    def __init__(self, inputs: Inputs, trains: bool) -> None:
        device = inputs.x.device
        self.tokens = torch.randperm(len(inputs.x), device=device)[:TOKENS]
        with torch.enable_grad():
            self._of_tokens(inputs)
            if trains:
                self._of_expert(inputs)

    def _of_tokens(self, inputs: Inputs) -> None:
        x = inputs.x.detach()[self.tokens].double().requires_grad_()
        weights = inputs.weights.detach()[self.tokens].double().requires_grad_()
        ids = inputs.ids[self.tokens]
        y = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            rows, slots = torch.where(ids == expert)
            part = one_expert(x[rows], inputs, expert) * weights[rows, slots, None]
            y = y.index_add(0, rows, part)
        dy = inputs.dy[self.tokens].double()
        self.dx, self.dweights = torch.autograd.grad(y, (x, weights), dy)
        self.y = y.detach()

    def _of_expert(self, inputs: Inputs) -> None:
        counts = torch.bincount(inputs.ids.flatten(), minlength=len(inputs.w13))
        self.expert = int(counts.argsort()[len(counts) // 2])
        rows, slots = torch.where(inputs.ids == self.expert)
        w13, w2 = (
            w.detach()[self.expert].double().requires_grad_() for w in (inputs.w13, inputs.w2)
        )
        y = gated(inputs.x.detach()[rows].double(), w13) @ w2.T
        dy = inputs.dy[rows].double() * inputs.weights.detach()[rows, slots, None]
        self.dw13, self.dw2 = torch.autograd.grad(y, (w13, w2), dy)

    def error_of_output(self, y: Tensor) -> float:
        if not torch.isfinite(y).all():
            return float("nan")
        return relative_error(y.detach()[self.tokens], self.y)

    def errors(self, y: Tensor, gradients: tuple[Tensor, ...]) -> dict[str, float]:
        """gradients: of x, weights, w13 and w2."""
        dx, dweights, dw13, dw2 = gradients
        return {
            "y": self.error_of_output(y),
            "dx": relative_error(dx[self.tokens], self.dx),
            "dweights": relative_error(dweights[self.tokens], self.dweights),
            "dw13": relative_error(dw13[self.expert], self.dw13),
            "dw2": relative_error(dw2[self.expert], self.dw2),
        }


def gated(x: Tensor, w13: Tensor) -> Tensor:
    gate, up = functional.linear(x, w13).chunk(2, dim=-1)
    return functional.silu(gate) * up


def one_expert(x: Tensor, inputs: Inputs, expert: int) -> Tensor:
    return gated(x, inputs.w13.detach()[expert].double()) @ inputs.w2.detach()[expert].double().T


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


def module_of(given: Inputs, recipe: str) -> octofold.nn.Experts:
    return octofold.nn.Experts.from_weights(given.w13, given.w2, recipe=recipe)


def forward_of(
    module: octofold.nn.Experts, routes: bool = False
) -> tuple[Forward, Sequence[Tensor]]:
    """routes: top_k() of the logits is part of it."""

    def forward(given: Inputs) -> Tensor:
        chosen = (given.ids, given.weights)
        if routes:
            chosen = octofold.ops.top_k(given.logits, given.ids.shape[1], normalize=True)
        result: Tensor = module(given.x, *chosen)
        return result

    return forward, (module.gate_up_proj, module.down_proj)


def by_octofold(
    recipe: str, routes: bool = False
) -> Callable[[Inputs], tuple[Forward, Sequence[Tensor]]]:
    def build(given: Inputs) -> tuple[Forward, Sequence[Tensor]]:
        module = module_of(given, recipe)
        return forward_of(module.requires_grad_(given.w13.requires_grad), routes)

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
