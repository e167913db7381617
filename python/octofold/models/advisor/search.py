"""The search for a plan: picks by what layers are predicted to do, held against runs of the whole
model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from .pick import Choice, Picked, cost_of, gain_of, least_cost, most_gain
from .plan.data import Option

MOST_CHECKS: Final = 8
"""Runs of the whole model to find how much the predicted error may be."""
ENOUGH: Final = 0.95
"""The share of the bound on the error at which a plan is not made any dearer."""
LEAST_GAIN: Final = 0.01
"""The least gain, as a share of a layer's own time, or bytes; less is no gain, but noise."""

Check: TypeAlias = Callable[[Picked], float]
"""The error of the model's answer, measured with these picks."""


@dataclass(frozen=True)
class Found:
    """Picks and the error that was measured with them."""

    picked: Picked
    error: float
    predicted: float
    """The error by the sum of the squares of the layers' effects."""
    why_none: str = ""
    """The reason why nothing is picked though layers would gain, if that is so."""


def predicted_error(picked: Picked, floor: float) -> float:
    """The error of the model's answer; `floor` is what any change makes."""
    return math.sqrt(cost_of(picked) + floor**2) if any(picked) else 0.0


def choices_of(options: Sequence[Option], target: str) -> list[Choice]:
    """The choices among a layer's options (the first is the layer as it is): the gain in seconds
    (target "time") or bytes, and as cost the square of the effect, as these add up. A choice that
    gains hardly more than one that costs less is left out."""
    own, *others = options
    choices = []
    for option in others:
        if option.why_not is not None or option.effect is None:
            continue
        if target == "time":
            assert own.seconds is not None
            assert option.seconds is not None
            gain = own.seconds - option.seconds
            worth = gain > LEAST_GAIN * own.seconds
        else:
            assert own.bytes is not None
            assert option.bytes is not None
            gain = float(own.bytes - option.bytes)
            worth = gain > 0
        if worth:
            choices.append(Choice(option.way, gain, option.effect**2))
    scale = LEAST_GAIN * ((own.seconds if target == "time" else own.bytes) or 0.0)
    return [
        choice
        for choice in choices
        if not any(o.cost < choice.cost and choice.gain < o.gain + scale for o in choices)
    ]


def within_error(
    layers: Sequence[Sequence[Choice]], max_error: float, floor: float, check: Check
) -> Found:
    """The most gain whose measured error is at most the bound.

    floor: the error that any change makes, however small.
    Layers do not add up exactly: after each run the predicted error that is allowed is moved in
    proportion to what was measured, and halved between what was too little and what too much.
    """
    everything = most_gain(layers, math.inf)
    best = Found([None] * len(layers), 0.0, 0.0)
    allowed, low, high = max(0.1 * max_error, _less(max_error, floor)), 0.0, math.inf
    for _ in range(MOST_CHECKS):
        picked = most_gain(layers, allowed**2)
        error = check(picked) if any(picked) else 0.0  # nothing: too little, as good as checked
        if error <= max_error:
            low = allowed
            if gain_of(picked) > gain_of(best.picked):
                best = Found(picked, error, predicted_error(picked, floor))
            if picked == everything or error > ENOUGH * max_error:
                break
        else:
            high = allowed
        beyond = _less(error, floor)
        proportion = _less(max_error, floor) / beyond if beyond > 0 else math.inf
        allowed = _next_allowed(allowed, low, high, proportion)
    return best


def _less(error: float, floor: float) -> float:
    """The rest of an error without the floor."""
    return math.sqrt(max(0.0, error**2 - floor**2))


def _next_allowed(allowed: float, low: float, high: float, proportion: float) -> float:
    wanted = allowed * min(4.0, max(0.1, 0.97 * proportion))
    if low < wanted < high:
        return wanted
    return (low + high) / 2 if math.isfinite(high) else 2 * allowed


def within_bytes(
    layers: Sequence[Sequence[Choice]], saved: float, floor: float, check: Check
) -> Found | None:
    """The least predicted error that saves so many bytes; None where nothing does."""
    picked = least_cost(layers, saved)
    if picked is None:
        return None
    error = check(picked) if any(picked) else 0.0
    return Found(picked, error, predicted_error(picked, floor))
