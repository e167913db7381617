"""The plan as a value, of what was measured and picked."""

import math
from collections.abc import Sequence

import torch
from torch.nn import Module

from ..._info import info
from .measure.times import Candidate
from .measure.whole import GRAPH, PYTHON, WholeTimes
from .pick import Choice
from .plan.data import Calls, Layer, Plan, Whole
from .plan.files import FORMAT
from .plan.fingerprint import fingerprint, machine_of, model_bytes
from .plan.layers import others_of
from .plan.record import dtype_name
from .plan.ways import OWN
from .search import Found, choices_of


def assemble(
    model: Module,
    runs: int,
    device: torch.device,
    bounds: tuple[str, float | None, int | None],
    candidates: Sequence[Candidate],
    found: Found,
    times: WholeTimes | None,
    graph: bool | None,
    error_own: float,
    alone: dict[str, str],
    notes: Sequence[str],
) -> Plan:
    """bounds: target, max_error, max_bytes; alone: why layers that are no candidates stay."""
    target, max_error, max_bytes = bounds
    pairs = zip(candidates, found.picked, strict=True)
    layers = [_layer(candidate, choice, target, found.why_none) for candidate, choice in pairs]
    measured = {layer.name for layer in layers}
    by_name = dict(model.named_modules())
    for name, why in alone.items():
        linear = by_name[name]
        if name not in measured and isinstance(linear, torch.nn.Linear):
            layers.append(_untouched(name, linear, why))
    return Plan(
        format=FORMAT,
        octofold=info().version,
        torch=str(torch.__version__),
        machine=machine_of(device),
        model=type(model).__qualname__,
        fingerprint=fingerprint(model),
        target=target,
        max_error=max_error,
        max_bytes=max_bytes,
        timing=None if graph is None else GRAPH if graph else PYTHON,
        runs=runs,
        layers=tuple(layers),
        others=others_of(model),
        whole=_whole(model, layers, found, times, error_own),
        notes=tuple(notes),
    )


def _whole(
    model: Module,
    layers: Sequence[Layer],
    found: Found,
    times: WholeTimes | None,
    error_own: float,
) -> Whole:
    saved, gained = 0, 0.0
    for layer in layers:
        own, planned = layer.own, layer.planned
        if own is None or planned is None:
            continue
        saved += (own.bytes or 0) - (planned.bytes or 0)
        gained += (own.seconds or 0.0) - (planned.seconds or 0.0)
    have = model_bytes(model)
    return Whole(
        bytes_own=have,
        bytes_planned=have - saved,
        error_own=error_own,
        error_predicted=found.predicted,
        error=found.error,
        seconds_own=None if times is None else times.own,
        seconds_predicted=None if times is None else times.own - gained,
        seconds_planned=None if times is None else times.planned,
        seconds_own_from_python=None if times is None else times.own_from_python,
        seconds_planned_from_python=None if times is None else times.planned_from_python,
    )


def _layer(candidate: Candidate, choice: Choice | None, target: str, why_none: str) -> Layer:
    record = candidate.record
    linear = record.linear
    return Layer(
        name=record.name,
        in_features=linear.in_features,
        out_features=linear.out_features,
        dtype=dtype_name(linear.weight.dtype),
        calls=tuple(
            Calls(kind.rows, dtype_name(kind.computes), count)
            for kind, count in record.calls.items()
        ),
        options=tuple(candidate.options),
        chosen=OWN if choice is None else choice.way,
        why_own=None if choice is not None else _why_own(candidate, target, why_none),
    )


def _why_own(candidate: Candidate, target: str, why_none: str) -> str:
    usable = [o for o in candidate.options if o.way != OWN and o.why_not is None]
    if not usable:
        reasons = {o.why_not: None for o in candidate.options if o.why_not is not None}
        return "no way can run it: " + "; ".join(map(str, reasons))
    if not choices_of(candidate.options, target):
        return "no way is faster here" if target == "time" else "no way takes less memory"
    if why_none:
        return why_none
    if target == "error":
        return "the bound on bytes is kept without it"
    least = min(option.effect for option in usable if option.effect is not None)
    if not math.isfinite(least):
        return "the answer is not finite with it"
    return f"other layers gain more for the error that is allowed (it alone makes {least:.1e})"


def _untouched(name: str, linear: torch.nn.Linear, why: str) -> Layer:
    size = linear.in_features, linear.out_features
    return Layer(name, *size, dtype_name(linear.weight.dtype), (), (), OWN, why)
