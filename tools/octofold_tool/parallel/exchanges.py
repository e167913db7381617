"""What the GPUs of a scheme exchange for a layer in one micro batch."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from .links import Exchange, Group
from .models import Layer, Linear
from .routing import copies_of_token
from .ways import BFLOAT16
from .work import Context


class Traffic(Enum):
    """What is exchanged, and by whom."""

    WEIGHTS = "FSDP: gather of weights"
    GRADIENTS = "FSDP: reduce-scatter of gradients"
    REPLICAS = "sums of gradients over replicas"
    INPUTS = "TP: gather of inputs"
    OUTPUT_GRADIENTS = "TP: gather of output gradients"
    OUTPUTS = "TP: reduce-scatter of outputs"
    DISPATCH = "EP: dispatch"
    COMBINE = "EP: combine"


FSDP: Final = (Traffic.WEIGHTS, Traffic.GRADIENTS)
TENSOR: Final = (Traffic.INPUTS, Traffic.OUTPUT_GRADIENTS, Traffic.OUTPUTS)
EXPERTS: Final = (Traffic.DISPATCH, Traffic.COMBINE)


def tensor_exchanges(linear: Linear, at: Context, backward: bool) -> dict[Traffic, Exchange]:
    """What a tensor group exchanges for one layer."""
    if at.scheme.tensor == 1 or linear.split not in ("column", "row"):
        return {}
    group, tokens = Group(at.scheme.tensor, 1), at.tokens * at.scheme.tensor
    gather, scatter = at.links.gather, at.links.reduce_scatter
    sent = at.way.activation_bytes if at.sends_codes(linear) else BFLOAT16
    if linear.split == "column":
        elements = tokens * linear.in_features
        # Backward: the transpose of x, for the weight gradient. Forward kept a part of it.
        found = {Traffic.INPUTS: gather(group, elements * sent)}
        if backward:
            found[Traffic.OUTPUTS] = scatter(group, elements * at.output_bytes)
        return found
    elements = tokens * linear.out_features
    if not backward:
        return {Traffic.OUTPUTS: scatter(group, elements * at.output_bytes)}
    sent = at.way.gradient_gather_bytes if at.sends_codes(linear) else BFLOAT16
    return {Traffic.OUTPUT_GRADIENTS: gather(group, elements * sent)}


def expert_exchanges(at: Context) -> dict[Traffic, Exchange]:
    """Of one pass: tokens (or gradients) to experts, and BF16 results back."""
    scheme, routing = at.scheme, at.model.routing
    if scheme.experts == 1 or routing is None:
        return {}
    hosts = at.links.group(scheme.experts, 1).hosts
    nvlink, network = copies_of_token(routing, scheme.experts, hosts)
    elements = at.tokens * at.model.hidden

    def sent(bytes_: float) -> Exchange:
        return at.links.all_to_all(nvlink * elements * bytes_, network * elements * bytes_)

    return {Traffic.DISPATCH: sent(at.way.activation_bytes), Traffic.COMBINE: sent(BFLOAT16)}


def shard_exchanges(layer: Layer, at: Context, backward: bool) -> dict[Traffic, Exchange]:
    """FSDP's: weights are gathered in either pass, gradients summed after each backward."""
    found: dict[Traffic, Exchange] = {}
    for group, linears, vectors in parts_of(layer, at):
        if group.size == 1:
            continue
        weights = vectors * BFLOAT16 + sum(
            at.local_size(linear) * (at.way.weight_bytes if at.sends_codes(linear) else BFLOAT16)
            for linear in linears
        )
        elements = vectors + sum(at.local_size(linear) for linear in linears)
        add(found, {Traffic.WEIGHTS: at.links.gather(group, weights)})
        if backward:
            sums = at.links.reduce_scatter(group, elements * at.gradient_bytes)
            add(found, {Traffic.GRADIENTS: sums})
    return found


def parts_of(layer: Layer, at: Context) -> Iterator[tuple[Group, list[Linear], float]]:
    """The groups that shard a layer's parameters: which linear layers, how many other elements."""
    scheme = at.scheme
    experts = [linear for linear in layer.linears if linear.split == "experts"]
    others = [linear for linear in layer.linears if linear.split != "experts"]
    yield at.links.group(scheme.shards, scheme.tensor), others, layer.vectors
    if experts:
        yield at.links.group(scheme.expert_shards, scheme.experts), experts, 0


def replica_exchange(layer: Layer, at: Context) -> Exchange:
    """Once a step: sums of gradients over replicas of shards, and over a tensor group of those of
    weights that all its GPUs hold."""
    scheme, total = at.scheme, Exchange()
    for shards, linears, vectors in parts_of(layer, at):
        is_experts = any(linear.split == "experts" for linear in linears)
        replicas = scheme.expert_replicas if is_experts else scheme.replicas
        stride = shards.size * (scheme.experts if is_experts else scheme.tensor)
        elements = vectors + sum(at.local_size(linear) for linear in linears)
        if replicas > 1:
            group = at.links.group(replicas, stride)
            bytes_ = elements / shards.size * at.gradient_bytes
            total += at.links.all_reduce(group, bytes_)
    if scheme.tensor > 1:
        own = layer.vectors + sum(x.size for x in layer.linears if x.split == "own")
        bytes_ = own / scheme.shards * at.gradient_bytes
        total += at.links.all_reduce(Group(scheme.tensor, 1), bytes_)
    return total


def add(total: dict[Traffic, Exchange], more: Mapping[Traffic, Exchange]) -> None:
    for kind, exchange in more.items():
        total[kind] = total.get(kind, Exchange()) + exchange
