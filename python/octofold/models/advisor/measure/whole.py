"""The time of the whole model on the inputs, as it is and by a plan."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import Module

from ...._timing import Method, NotCapturableError, captured, medians
from .errors import in_place
from .runs import Runs
from .times import ROUNDS

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
