"""Times on this GPU: of each layer in each way, all of its calls in one run of the inputs, and of
the whole model, as it is and by a plan."""

import copy
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error
from ..._timing import Method, NotCapturableError, Sampler, captured, medians
from .data import Option
from .errors import failed, in_place
from .record import Kind, Recorded
from .runs import Runs
from .ways import OWN, Way

CACHE_BYTES: Final = 192 << 20
"""Weights that take turns are together as large as this, beyond any L2 cache, or as those of the
model if these are less: then they stay in the cache in the model too."""
MOST_SETS: Final = 64
MOST_KINDS: Final = 4
"""The most kinds of calls to time for a layer; others count as that of the nearest row count."""

ROUNDS: Final = 9
IN_GRAPH: Final = Method("graph", rest=0.0)
FROM_PYTHON: Final = Method("events", rest=0.0)

Signature: TypeAlias = tuple[Any, ...]


def measurable(device: torch.device) -> bool:
    """True if times are measured there: on the CPU backend they would say nothing."""
    return device.type == "cuda"


@dataclass
class Candidate:
    """A layer and what was measured of it so far."""

    record: Recorded
    options: list[Option]

    @property
    def signature(self) -> Signature:
        """Same for layers that take the same time."""
        linear = self.record.linear
        calls = sorted(self.record.calls.items(), key=str)
        sizes = linear.in_features, linear.out_features, linear.bias is not None
        return *sizes, linear.weight.dtype, tuple(calls)


def groups_of(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Groups the candidates that take the same time together, so that they are timed once."""
    groups: dict[Signature, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.signature, []).append(candidate)
    return list(groups.values())


def time_group(
    group: Sequence[Candidate],
    ways: Sequence[Way],
    device: torch.device,
    all_bytes: int,
    graph: bool,
) -> None:
    """Put the times into the options of all of the group.

    all_bytes: of the weights of all layers of the model.
    graph: by CUDA graphs, else by calls from Python.
    """
    first = group[0].record
    linears = list(_sets(group, all_bytes))
    usable = [
        way
        for way in ways
        if any(o.way == way.name and o.why_not is None for c in group for o in c.options)
    ]
    makers: dict[str, Callable[[torch.nn.Linear], Module]] = {OWN: lambda linear: linear}
    makers.update({way.name: way.make for way in usable})
    seconds: defaultdict[str, float] = defaultdict(float)
    wrong: dict[str, str] = {}
    for kind, count in _timed_kinds(first.calls).items():
        x = _input(first, kind)
        samplers: dict[str, Sampler] = {}
        for name, make in makers.items():
            if name in wrong:
                continue
            try:
                samplers[name] = _sampler([make(linear) for linear in linears], x, kind, graph)
            except (Error, RuntimeError, NotCapturableError) as failure:
                if name == OWN or isinstance(failure, torch.OutOfMemoryError):
                    raise
                wrong[name] = f"it could not be timed: {failure}"[:300]
        for name, value in zip(samplers, _medians(list(samplers.values())), strict=True):
            seconds[name] += count * value
    for candidate in group:
        candidate.options = [
            failed(option, wrong[option.way])
            if option.way in wrong
            else replace(option, seconds=None if option.why_not else seconds[option.way])
            for option in candidate.options
        ]


def _medians(samplers: Sequence[Sampler]) -> list[float]:
    return medians(samplers, ROUNDS, warm_up=1)


def _sampler(modules: Sequence[Module], x: Tensor, kind: Kind, graph: bool) -> Sampler:
    def call(module: Module) -> Any:
        with kind.context(x.device):
            return module(x)

    calls = [partial(call, module) for module in modules]
    for each in calls:
        each()  # compiles kernels, which a capture must not
    return (IN_GRAPH if graph else FROM_PYTHON).sampler(calls)


def _sets(group: Sequence[Candidate], all_bytes: int) -> Iterator[torch.nn.Linear]:
    """Layers that take turns: the group's own, and copies where these are too few."""
    weight = group[0].record.linear.weight
    one = weight.numel() * weight.element_size()
    count = max(1, min(MOST_SETS, -(-min(CACHE_BYTES, all_bytes) // one)))
    for index in range(count):
        linear = group[index % len(group)].record.linear
        yield linear if index < len(group) else copy.deepcopy(linear)


def _timed_kinds(calls: Counter[Kind]) -> Counter[Kind]:
    """The kinds that weigh most, each with the calls that count as it."""
    by_weight = sorted(calls, key=lambda kind: (-calls[kind] * kind.rows, str(kind)))
    timed = by_weight[:MOST_KINDS]
    counts: Counter[Kind] = Counter()
    for kind, count in calls.items():
        alike = [k for k in timed if k.computes == kind.computes] or timed
        counts[min(alike, key=lambda k: (abs(k.rows - kind.rows), k.rows))] += count
    return counts


def _input(record: Recorded, kind: Kind) -> Tensor:
    """x [rows, in] of what the layer was given, the sampled rows over and over."""
    assert record.sample is not None
    sample = record.sample.to(kind.dtype)
    return sample.repeat(-(-kind.rows // len(sample)), 1)[: kind.rows].contiguous()


GRAPH: Final = "CUDA graph"
PYTHON: Final = "calls from Python"
_IN_GRAPH: Final = Method("graph", rest=0.0, passes=1)
_FROM_PYTHON: Final = Method("events", rest=0.0, passes=1)
LEAST_ROUNDS: Final = 3
ENOUGH_SECONDS: Final = 4.0
"""The time for a slow model's runs in turns: fewer rounds, whose spread is small beside them."""


@dataclass(frozen=True)
class WholeTimes:
    """Seconds of all runs of the inputs together."""

    own: float
    planned: float
    own_from_python: float | None
    planned_from_python: float | None
    """None where the first two are that already."""


def run_all(runs: Runs, model: Module) -> Callable[[], Any]:
    """All runs as one call."""
    return lambda: [run(model) for run in runs]


def why_no_graph(runs: Runs, model: Module) -> str | None:
    """Why the runs cannot be a CUDA graph; None where they can. They have run before."""
    call = run_all(runs, model)
    try:
        with _no_waiting():
            call()
        captured(call)
    except (RuntimeError, NotCapturableError) as error:
        return " ".join(str(error).split())[:300]
    return None


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Makes it an error meanwhile if the host waits for the GPU, as a capture must not: it is found
    so without a capture that fails, which leaves torch's allocator in less order."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not find all
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def whole_times(runs: Runs, model: Module, new: dict[int, Module], graph: bool) -> WholeTimes:
    """The model as it is and with these modules, in turns."""
    sampled = [_swapped(runs, model, {}), _swapped(runs, model, new)]
    seconds = max(1e-6, *(sample() for sample in sampled))  # compiles kernels too
    rounds = max(LEAST_ROUNDS, min(ROUNDS, int(ENOUGH_SECONDS / seconds)))
    from_python = medians(sampled, rounds, warm_up=1)
    if not graph:
        return WholeTimes(from_python[0], from_python[1], None, None)
    replays = []
    for modules in ({}, new):
        with in_place(model, modules) as changed:
            replays.append(_IN_GRAPH.sampler([run_all(runs, changed)]))
    return WholeTimes(*medians(replays, rounds, warm_up=1), *from_python)


def _swapped(runs: Runs, model: Module, new: dict[int, Module]) -> Callable[[], float]:
    """Samples of calls from Python with these modules, whose swap is not timed."""

    def sample() -> float:
        with in_place(model, new) as changed:
            return _FROM_PYTHON.sampler([run_all(runs, changed)])()

    return sample
