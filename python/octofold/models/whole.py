"""The time of the whole model on the inputs, as it is and by a plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch.nn import Module

from .measure_errors import in_place
from .runs import Runs
from .timing import NotCapturableError, Sampler, captured, medians

GRAPH: Final = "CUDA graph"
PYTHON: Final = "calls from Python"


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
    try:
        captured(run_all(runs, model))
    except NotCapturableError as error:
        return str(error)[:300]
    return None


def whole_times(runs: Runs, model: Module, new: dict[int, Module], graph: bool) -> WholeTimes:
    """The model as it is and with these modules, in turns."""
    call = run_all(runs, model)

    def planned() -> Any:
        with in_place(model, new) as changed:
            return run_all(runs, changed)()

    for each in (call, planned):
        each()  # compiles kernels
    from_python = medians([Sampler(call, 1), Sampler(planned, 1)])
    if not graph:
        return WholeTimes(from_python[0], from_python[1], None, None)
    replays = [Sampler(captured(call), 1), Sampler(captured(planned), 1)]
    return WholeTimes(*medians(replays), *from_python)
