"""Ways to spread a model over GPUs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from .models import Model
from .routing import chance_of_visit

MOST_MICRO_BATCHES: Final = 64
UNIT: Final = 128
"""Scales are of so many elements, which no GPU may share with another."""


@dataclass(frozen=True)
class Scheme:
    """Who has what. GPUs are numbered host by host: GPUs of one tensor group are neighbours, then
    come shards, then replicas; the experts' groups are neighbours too."""

    gpus: int
    tensor: int
    """GPUs that share the layers' rows and columns, and the sequence between them."""
    shards: int
    """GPUs over which a parameter is sharded (FSDP). 1: each holds it whole."""
    experts: int
    """GPUs over which the experts are spread."""
    micro_batches: int
    recompute: bool
    """Backward computes each layer's forward again, and only its input is kept."""

    @property
    def replicas(self) -> int:
        """Of each shard of a parameter."""
        return self.gpus // (self.tensor * self.shards)

    @property
    def expert_shards(self) -> int:
        """GPUs over which an expert is sharded: those of the dense shards that have it."""
        return max(1, self.tensor * self.shards // self.experts)

    @property
    def expert_replicas(self) -> int:
        return self.gpus // (self.experts * self.expert_shards)

    def __str__(self) -> str:
        words = [f"TP {self.tensor}"] if self.tensor > 1 else []
        if self.shards > 1:
            words.append(f"FSDP {self.shards}")
        if self.replicas > 1:
            words.append(f"DP {self.replicas}")
        if self.experts > 1:
            words.append(f"EP {self.experts}")
        words.append(f"{self.micro_batches} micro")
        if self.recompute:
            words.append("recompute")
        return " · ".join(words)


def enumerate_schemes(
    model: Model, gpus: int, gpus_per_host: int, tokens: int, sequence: int
) -> tuple[list[Scheme], Counter[str]]:
    """All schemes for `tokens` a GPU and step; and, by reason, how many more do not divide.

    Tensor groups stay inside a host. Shards are none, those of a host, or all.
    """
    host = min(gpus, gpus_per_host)
    tensors = [size for size in range(1, host + 1) if host % size == 0]
    ranks = powers_of_two(gpus) if model.routing else [1]
    micro = powers_of_two(MOST_MICRO_BATCHES)
    schemes: list[Scheme] = []
    left_out: Counter[str] = Counter()
    for tensor, experts, micro_batches in product(tensors, ranks, micro):
        data = gpus // tensor
        for shards in sorted({1, host // tensor, data}):
            for recompute in (False, True):
                scheme = Scheme(gpus, tensor, shards, experts, micro_batches, recompute)
                reason = next(reasons(model, scheme, gpus_per_host, tokens, sequence), None)
                if reason is None:
                    schemes.append(scheme)
                else:
                    left_out[reason] += 1
    return schemes, left_out


def powers_of_two(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length())]


def reasons(
    model: Model, scheme: Scheme, gpus_per_host: int, tokens: int, sequence: int
) -> Iterator[str]:
    """Why this scheme is none."""
    held, remainder = divmod(tokens, scheme.micro_batches)
    if remainder or held * scheme.tensor % sequence:
        yield "a micro batch of a tensor group is no whole number of sequences"
    elif held % UNIT:
        yield f"a micro batch has no multiple of {UNIT} tokens on a GPU"
    for layer in model.layers:
        attention = layer.attention
        if attention and (attention.heads % scheme.tensor or attention.kv_heads % scheme.tensor):
            yield "tensor parallel: the heads do not divide"
        for linear in layer.linears:
            if linear.high_precision:
                if max(linear.out_features, linear.in_features) % scheme.tensor:
                    yield "tensor parallel: the vocabulary does not divide"
                continue
            size = {"column": linear.out_features, "row": linear.in_features}.get(linear.split)
            if size is not None and scheme.tensor > 1 and size % (UNIT * scheme.tensor):
                yield f"tensor parallel: a part of {linear.name} is no multiple of {UNIT}"
    if model.routing is None:
        return
    ranks = scheme.experts
    if scheme.gpus % ranks:
        yield "expert parallel: the GPUs do not divide"
    elif max(ranks, gpus_per_host) % min(ranks, gpus_per_host):
        yield "expert parallel: hosts have shares of other sizes"
    dense = scheme.tensor * scheme.shards
    if dense % scheme.experts and scheme.experts % dense:
        yield "expert parallel: shards of experts are not those of other weights"
    hosts = max(1, scheme.experts // gpus_per_host)
    try:
        chance_of_visit(model.routing, scheme.experts)
        chance_of_visit(model.routing, hosts)
    except ValueError:
        yield "expert parallel: the experts, or their routing groups, do not divide"
