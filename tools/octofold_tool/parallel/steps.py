"""The time of a training step, and all schemes of a model by it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .exchanges import Traffic, add, replica_exchange
from .layers import Phase, exposed, phase
from .links import Exchange, Links
from .memory import Memory, State, local_parameters, memory_of
from .models import Layer, Model
from .rates import Rates
from .schemes import Scheme, enumerate_schemes
from .ways import WAYS, Way
from .work import Context


@dataclass(frozen=True)
class Settings:
    """What a step is, whatever the scheme."""

    gpus: int
    tokens: int
    """Of one GPU in one step."""
    sequence: int
    state: State
    gradient_bytes: float
    output_bytes: float
    overlap_tensor: bool
    memory: float
    """Bytes of one GPU."""


@dataclass(frozen=True)
class Parts:
    """Seconds of a step."""

    products: float = 0.0
    casts: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    optimizer: float = 0.0
    tensor_exposed: float = 0.0
    experts_exposed: float = 0.0
    fsdp_exposed: float = 0.0

    @property
    def total(self) -> float:
        return sum(self._seconds)

    def plus(self, count: float, other: "Parts") -> "Parts":
        pairs = zip(self._seconds, other._seconds, strict=True)
        return Parts(*(mine + count * more for mine, more in pairs))

    @property
    def _seconds(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class Step:
    """One scheme in one way."""

    memory: Memory
    fits: bool
    parts: Parts
    layers: Mapping[str, Mapping[Traffic, Exchange]]
    """What one layer of each kind exchanges in one micro batch; REPLICAS: in a step."""
    traffic: Mapping[Traffic, Exchange]
    """What all layers exchange in a step."""

    @property
    def seconds(self) -> float:
        return self.parts.total


@dataclass(frozen=True)
class Planned:
    """One scheme in all ways, by their names."""

    scheme: Scheme
    steps: Mapping[str, Step]


@dataclass(frozen=True)
class Planner:
    """A model on GPUs, links between them, and how fast each is."""

    model: Model
    links: Links
    rates: Rates
    settings: Settings

    @cached_property
    def _phases(self) -> dict[object, Phase]:
        return {}

    def context(self, scheme: Scheme, way: Way) -> Context:
        given = self.settings
        tokens = given.tokens // scheme.micro_batches
        return Context(
            *(self.model, scheme, way, self.links, self.rates),
            *(tokens, given.sequence, given.gradient_bytes, given.output_bytes),
        )

    def phase(self, layer: Layer, at: Context, backward: bool) -> Phase:
        """Kept: schemes that differ in what is computed again have the same passes."""
        scheme = at.scheme
        key = (
            *(layer.name, at.way.name, backward),
            *(scheme.tensor, scheme.shards, scheme.experts, scheme.micro_batches),
        )
        found = self._phases.get(key)
        if found is None:
            found = self._phases[key] = phase(layer, at, backward)
        return found

    def step(self, scheme: Scheme, way: Way) -> Step:
        at, given = self.context(scheme, way), self.settings
        parts = Parts()
        layers: dict[str, Mapping[Traffic, Exchange]] = {}
        total: dict[Traffic, Exchange] = {}
        micro = scheme.micro_batches
        for layer in self.model.layers:
            passes = self.passes(layer, at)
            sums = replica_exchange(layer, at)
            traffic: dict[Traffic, Exchange] = {}
            for one in passes:
                add(traffic, one.exchanges)
                parts = parts.plus(layer.count * micro, self.parts_of(one))
            # Sums over replicas are in the last micro batch's backward.
            last = self.parts_of(passes[-1], sums.seconds).fsdp_exposed
            before = self.parts_of(passes[-1]).fsdp_exposed
            parts = parts.plus(layer.count, Parts(fsdp_exposed=last - before))
            step = {kind: exchange.times(layer.count * micro) for kind, exchange in traffic.items()}
            if sums.seconds:
                traffic[Traffic.REPLICAS] = sums
                step[Traffic.REPLICAS] = sums.times(layer.count)
            layers[layer.name] = traffic
            add(total, step)
        moved = local_parameters(at) * given.state.moved
        parts = parts.plus(1, Parts(optimizer=moved / self.rates.copy))
        memory = memory_of(at, given.state)
        return Step(memory, memory.total <= given.memory, parts, layers, total)

    def passes(self, layer: Layer, at: Context) -> Sequence[Phase]:
        """Forward, backward; and before it forward again, with the weights of backward."""
        forward, backward = (self.phase(layer, at, b) for b in (False, True))
        if not at.scheme.recompute:
            return forward, backward
        others = dict(forward.exchanges)
        others.pop(Traffic.WEIGHTS, None)
        return forward, dataclasses.replace(forward, exchanges=others), backward

    def parts_of(self, one: Phase, sums: float = 0.0) -> Parts:
        left = exposed(one, self.settings.overlap_tensor, sums)
        work = one.products, one.casts, one.attention, one.elementwise
        return Parts(*work, 0.0, left.tensor, left.experts, left.fsdp)

    def planned(self, ways: Sequence[Way] = WAYS) -> tuple[list[Planned], Counter[str]]:
        """All schemes; and, by reason, how many more do not divide."""
        given, links = self.settings, self.links
        schemes, left_out = enumerate_schemes(
            self.model, given.gpus, links.gpus_per_host, given.tokens, given.sequence
        )
        planned = [Planned(s, {way.name: self.step(s, way) for way in ways}) for s in schemes]
        return planned, left_out

    @property
    def flops(self) -> float:
        """Operations of the model for one GPU's tokens, forward and backward; none of those that
        are done again, and none of masked attention."""
        model, given = self.model, self.settings
        products = 6.0 * model.active_parameters
        attention = 3.0 * model.attention_flops(given.sequence)
        return given.tokens * (products + attention)


def ranked(planned: Sequence[Planned], way: Way) -> list[Planned]:
    """The best of each tensor group, shards and experts' group. First those that fit, by time;
    then the others, by memory."""

    def order(one: Planned) -> tuple[bool, float]:
        step = one.steps[way.name]
        return not step.fits, step.seconds if step.fits else step.memory.total

    best: dict[tuple[int, int, int], Planned] = {}
    for one in sorted(planned, key=order):
        scheme = one.scheme
        best.setdefault((scheme.tensor, scheme.shards, scheme.experts), one)
    return list(best.values())
