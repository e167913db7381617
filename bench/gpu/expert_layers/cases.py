"""Expert layers that are measured, and what goes into them."""

from dataclasses import dataclass

import torch
from torch import Tensor


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

    @property
    def weight_bytes(self) -> int:
        """In FP8."""
        return 3 * self.experts * self.hidden * self.inner


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
