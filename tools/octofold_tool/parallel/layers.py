"""One pass through a layer: its work, its exchanges, and which of these no work hides."""

from collections.abc import Mapping
from dataclasses import dataclass

from .exchanges import (
    EXPERTS,
    FSDP,
    TENSOR,
    Traffic,
    add,
    expert_exchanges,
    shard_exchanges,
    tensor_exchanges,
)
from .links import Exchange
from .models import Layer
from .work import Context, attention_seconds, cast_seconds, elementwise_bytes, products_of


@dataclass(frozen=True)
class Phase:
    """One pass through one layer on one GPU, in seconds, and what it exchanges."""

    products: float
    casts: float
    attention: float
    elementwise: float
    """Norms, residuals, rotary positions, activations, sorting by expert."""
    shared: float
    """The part of `products` that is the shared expert's, beside which tokens travel."""
    exchanges: Mapping[Traffic, Exchange]

    @property
    def compute(self) -> float:
        return self.products + self.casts + self.attention + self.elementwise

    def seconds_of(self, kinds: tuple[Traffic, ...]) -> float:
        return sum(self.exchanges[kind].seconds for kind in kinds if kind in self.exchanges)


@dataclass(frozen=True)
class Exposed:
    """Seconds of exchanges that no work hides."""

    tensor: float
    experts: float
    fsdp: float


def exposed(phase: Phase, overlap_tensor: bool, sums: float = 0.0) -> Exposed:
    """What is left of each kind of exchange:

    tensor   all, as the product needs it; with `overlap_tensor` what exceeds the products
    experts  what exceeds the shared expert's products
    fsdp     with `sums` seconds of sums over replicas: what exceeds all other work of a layer, as
             the next layer's weights are gathered, and the last one's gradients summed, meanwhile

    No second of work hides two of experts and fsdp, which share the network.
    """
    tensor = phase.seconds_of(TENSOR)
    if overlap_tensor:
        tensor = max(0.0, tensor - phase.products)
    experts = phase.seconds_of(EXPERTS)
    hidden = min(experts, phase.shared)
    fsdp = phase.seconds_of(FSDP) + sums
    return Exposed(tensor, experts - hidden, max(0.0, fsdp - (phase.compute - hidden)))


def phase(layer: Layer, at: Context, backward: bool) -> Phase:
    """One pass of one micro batch."""
    exchanges = shard_exchanges(layer, at, backward)
    products = casts = shared = 0.0
    for linear in layer.linears:
        seconds = sum(
            at.rates.seconds(product, at.is_fp8(linear))
            for product in products_of(linear, at, backward)
        )
        products += seconds
        shared += seconds if linear.shared else 0.0
        casts += cast_seconds(linear, at, backward) if not linear.lookup else 0.0
        add(exchanges, tensor_exchanges(linear, at, backward))
    if layer.has_experts:
        add(exchanges, expert_exchanges(at))
    attention = attention_seconds(layer, at, backward)
    elementwise = elementwise_bytes(layer, at, backward) / at.rates.copy
    return Phase(products, casts, attention, elementwise, shared, exchanges)
