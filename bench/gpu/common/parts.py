"""Shares of a step's time by parts of a model: its kernels by the modules that they were started
for, forward and backward."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from octofold._timing import Call
from torch.autograd.profiler import record_function
from torch.nn import Module
from torch.profiler import ProfilerActivity, profile

REST = "rest"
_RANGE, _BACKWARD = "part:", "autograd::engine::evaluate_function"

PartOf: TypeAlias = Callable[[Module], str | None]
"""The part that a module's kernels belong to, where its children have none of their own; None: that
of the module around it."""


@dataclass
class Share:
    """The share of a step that a part takes."""

    microseconds: float = 0.0
    kernels: int = 0
    by_name: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The microseconds of each kernel."""


def shares_of(
    step: Call, model: Module, part_of: PartOf, finer: Callable[[str, list[str]], str], on_gpu: bool
) -> dict[str, Share]:
    """Returns the shares of one step that has run before, without what the host does between
    kernels; on a CPU, of operations. A node of the autograd graph belongs to the module whose
    forward made it: they are told by their sequence numbers.

    finer: of a part and the names of the operations around a kernel, the innermost first, the part
        that is counted.
    """
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with _ranges(model, part_of) as made, profile(activities=activities) as profiled:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    shares: dict[str, Share] = defaultdict(Share)
    for event in profiled.events() or ():
        if on_gpu:
            found = [(kernel.name, kernel.duration) for kernel in event.kernels]
        else:
            found = [(event.name, event.self_cpu_time_total)]
        if not found:
            continue
        around = list(_around(event))
        names = [each.name for each in around]
        part = finer(_part_of(around, made), names)
        for name, microseconds in found:
            shares[part].microseconds += microseconds
            shares[part].kernels += 1
            shares[part].by_name[name] += microseconds
    return dict(shares)


def _around(event: Any) -> Iterator[Any]:
    """The event and those that it ran in."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _part_of(around: list[Any], made: list[tuple[int, int, str]]) -> str:
    for event in around:
        if event.name.startswith(_RANGE):
            return str(event.name.removeprefix(_RANGE))
        if event.name.startswith(_BACKWARD):
            inside = [each for each in made if each[0] <= event.sequence_nr < each[1]]
            return min(inside, key=lambda each: each[1] - each[0])[2] if inside else REST
    return REST


@contextmanager
def _ranges(model: Module, part_of: PartOf) -> Iterator[list[tuple[int, int, str]]]:
    """While it lasts modules with a part mark what they do. Holds the sequence numbers of the nodes
    that they made: the first, the one behind the last, and the part."""
    made: list[tuple[int, int, str]] = []
    entered: list[tuple[int, Any]] = []
    number = torch._C._autograd._get_sequence_nr
    handles = []
    for module in model.modules():
        part = part_of(module)
        if part is None:
            continue

        def enter(*_: Any, part: str = part) -> None:
            mark = record_function(f"{_RANGE}{part}")
            mark.__enter__()
            entered.append((number(), mark))

        def leave(*_: Any, part: str = part) -> None:
            begin, mark = entered.pop()
            mark.__exit__(None, None, None)
            made.append((begin, number(), part))

        handles += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave),
        ]
    try:
        yield made
    finally:
        for handle in handles:
            handle.remove()
