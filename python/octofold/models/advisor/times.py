"""Times on this GPU: of each layer in each way, all of its calls in one run of the inputs, and of
the whole model, as it is and by a plan."""

import copy
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error
from ..._timing import Method, NotCapturableError, Sampler, captured, medians
from .layers import Candidate, Kind
from .model import Runs, in_place
from .ways import OWN, WAYS

CACHE_BYTES: Final = 192 << 20
"""Weights that take turns are together as large as this, beyond any L2 cache, or as those of the
model if these are less: then they stay in the cache in the model too."""
MOST_SETS: Final = 64
MOST_KINDS: Final = 4
"""The most kinds of calls to time for a layer; others count as that of the nearest row count."""
ROUNDS: Final = 9
LEAST_ROUNDS: Final = 3
ENOUGH_SECONDS: Final = 4.0
"""The time for a slow model's runs in turns: fewer rounds, whose spread is small beside them."""
IN_GRAPH: Final = Method("graph", rest=0.0)
FROM_PYTHON: Final = Method("events", rest=0.0)


def measurable(device: torch.device) -> bool:
    """True if times are measured there: on the CPU backend they would say nothing."""
    return device.type == "cuda"


def groups_of(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Groups the candidates that take the same time together, so that they are timed once."""
    groups: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        linear, calls = candidate.linear, sorted(map(str, candidate.calls.items()))
        groups[f"{linear} {linear.weight.dtype} {calls}"].append(candidate)
    return list(groups.values())


def time_group(group: Sequence[Candidate], all_bytes: int, graph: bool) -> None:
    """Put the times into the options of all of the group.

    all_bytes: of the weights of all layers of the model.
    graph: by CUDA graphs, else by calls from Python.
    """
    first = group[0]
    linears = list(_sets(group, all_bytes))
    names = [o.way for o in first.options if any(c.usable(o.way) for c in group)]
    seconds: defaultdict[str, float] = defaultdict(float)
    wrong: dict[str, str] = {}
    for kind, count in _timed_kinds(first.calls).items():
        x = _input(first.sample, kind)
        samplers: dict[str, Sampler] = {}
        for name in names:
            if name in wrong:
                continue
            try:
                modules = [new if name == OWN else WAYS[name].make(new) for new in linears]
                samplers[name] = _sampler(modules, x, kind, graph)
            except (Error, RuntimeError, NotCapturableError) as failure:
                if name == OWN or isinstance(failure, torch.OutOfMemoryError):
                    raise
                wrong[name] = f"it could not be timed: {failure}"[:300]
        for name, value in zip(samplers, _medians(list(samplers.values())), strict=True):
            seconds[name] += count * value
    for candidate in group:
        candidate.fail(wrong)
        candidate.options = [
            option if option.why_not else replace(option, seconds=seconds[option.way])
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
    one = group[0].linear.weight.nbytes
    count = max(1, min(MOST_SETS, -(-min(CACHE_BYTES, all_bytes) // one)))
    for index in range(count):
        linear = group[index % len(group)].linear
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


def _input(sample: Tensor, kind: Kind) -> Tensor:
    """x [rows, in] of what the layer was given, the sampled rows over and over."""
    repeated = sample.to(kind.dtype).repeat(-(-kind.rows // len(sample)), 1)
    return repeated[: kind.rows].contiguous()


def why_no_graph(runs: Runs, model: Module) -> str | None:
    """Why the runs cannot be a CUDA graph; None where they can. They have run before."""
    call = _all_of(runs, model)
    try:
        with _no_waiting():
            call()
        captured(call)
    except (RuntimeError, NotCapturableError) as error:
        return " ".join(str(error).split())[:300]
    return None


def _all_of(runs: Runs, model: Module) -> Callable[[], Any]:
    return lambda: [run(model) for run in runs]


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


def whole_times(runs: Runs, model: Module, new: dict[int, Module], graph: bool) -> dict[str, float]:
    """Seconds of all runs together, of the model as it is and with these modules, in turns: fields
    of plan.Whole."""

    def sample(modules: dict[int, Module]) -> float:
        """Called from Python with these modules, whose swap is not timed."""
        with in_place(model, modules) as changed:
            return replace(FROM_PYTHON, passes=1).sampler([_all_of(runs, changed)])()

    def replay(modules: dict[int, Module]) -> Sampler:
        with in_place(model, modules) as changed:
            return replace(IN_GRAPH, passes=1).sampler([_all_of(runs, changed)])

    sampled = [partial(sample, modules) for modules in ({}, new)]
    seconds = max(1e-6, *(each() for each in sampled))  # compiles kernels too
    rounds = max(LEAST_ROUNDS, min(ROUNDS, int(ENOUGH_SECONDS / seconds)))
    from_python = medians(sampled, rounds, warm_up=1)
    if not graph:
        return {"seconds_own": from_python[0], "seconds_planned": from_python[1]}
    own, planned = medians([replay({}), replay(new)], rounds, warm_up=1)
    return {
        "seconds_own": own,
        "seconds_planned": planned,
        "seconds_own_from_python": from_python[0],
        "seconds_planned_from_python": from_python[1],
    }
