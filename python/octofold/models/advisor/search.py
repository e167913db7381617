"""The choice of the way in which each layer is to be run: a pure function of what was measured.

Every layer has choices, each with what it gains and what it costs; costs add up, as do gains. From
each layer's choices the ones on the upper hull of gain over cost are kept, so that each step from
one to the next gains less for its cost than the step before. Steps of all layers are taken in the
order of gain for cost (ties: the earlier layer's), up to the first that does not fit. One dear
layer would so shut out all that come after it: the same is done without the choices that cost more
than a cap, for several caps, and the best of these counts. As each of them gains no less under a
looser bound, so does the best.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from .data import Option

MOST_CAPS: Final = 48


@dataclass(frozen=True)
class Choice:
    """A way to run a layer. What gains nothing is never picked."""

    way: str
    gain: float
    cost: float
    """At least 0, finite."""


@dataclass(frozen=True)
class _Step:
    """From one choice of a layer, or none, to a dearer one."""

    layer: int
    choice: Choice
    gain: float
    cost: float

    @property
    def order(self) -> tuple[float, int, float]:
        slope = math.inf if self.cost == 0 else self.gain / self.cost
        return -slope, self.layer, self.choice.cost


Picked: TypeAlias = list[Choice | None]
"""The choice that was picked for each layer; None: it stays as it is."""


def most_gain(layers: Sequence[Sequence[Choice]], budget: float) -> Picked:
    """The picks that gain most, of those whose costs together are at most the budget."""
    best = _single(layers, budget)
    for steps in _orders(layers):
        found = _prefix_within(steps, len(layers), budget)
        if gain_of(found) > gain_of(best):
            best = found
    return best


def least_cost(layers: Sequence[Sequence[Choice]], needed: float) -> Picked | None:
    """The picks that cost least, of those whose gains together are at least what is needed; None
    where all choices together do not gain that."""
    if needed <= 0:
        return [None] * len(layers)
    best: Picked | None = None
    for steps in _orders(layers):
        found = _prefix_to(steps, len(layers), needed)
        if found is not None and (best is None or cost_of(found) < cost_of(best)):
            best = found
    return best


def gain_of(picked: Picked) -> float:
    """The gain of all picks together."""
    return math.fsum(choice.gain for choice in picked if choice is not None)


def cost_of(picked: Picked) -> float:
    """The cost of all picks together."""
    return math.fsum(choice.cost for choice in picked if choice is not None)


def _single(layers: Sequence[Sequence[Choice]], budget: float) -> Picked:
    """The one choice that gains most: with it the result is at least half of the best there is."""
    picked: Picked = [None] * len(layers)
    fitting = [
        (choice.gain, -choice.cost, -index, choice)
        for index, choices in enumerate(layers)
        for choice in choices
        if choice.gain > 0 and choice.cost <= budget
    ]
    if fitting:
        *_, index, choice = max(fitting, key=lambda entry: entry[:3])
        picked[-index] = choice
    return picked


def _orders(layers: Sequence[Sequence[Choice]]) -> list[list[_Step]]:
    """The steps in the order in which they are taken, for each cap."""
    costs = sorted({choice.cost for choices in layers for choice in choices if choice.gain > 0})
    if len(costs) > MOST_CAPS:
        last = len(costs) - 1
        costs = [costs[round(i * last / (MOST_CAPS - 1))] for i in range(MOST_CAPS)]
    return [
        sorted(
            (
                step
                for index, choices in enumerate(layers)
                for step in _steps(index, [c for c in choices if c.cost <= cap])
            ),
            key=lambda step: step.order,
        )
        for cap in costs
    ]


def _steps(layer: int, choices: Sequence[Choice]) -> list[_Step]:
    """Along the upper hull of gain over cost, from nothing on."""
    hull: list[tuple[float, float, Choice | None]] = [(0.0, 0.0, None)]
    for choice in sorted(choices, key=lambda c: (c.cost, -c.gain, c.way)):
        if choice.gain <= hull[-1][1]:
            continue
        while len(hull) > 1 and _bends_up(hull[-2], hull[-1], choice):
            hull.pop()
        if hull[-1][0] == choice.cost and hull[-1][2] is not None:
            hull.pop()
        hull.append((choice.cost, choice.gain, choice))
    return [
        _Step(layer, choice, gain - before[1], cost - before[0])
        for before, (cost, gain, choice) in itertools.pairwise(hull)
        if choice is not None
    ]


def _bends_up(
    first: tuple[float, float, Choice | None],
    second: tuple[float, float, Choice | None],
    third: Choice,
) -> bool:
    """True if the way over the second is no better than the straight one to the third."""
    rise, run = second[1] - first[1], second[0] - first[0]
    return rise * (third.cost - first[0]) <= (third.gain - first[1]) * run


def _prefix_within(steps: Sequence[_Step], layers: int, budget: float) -> Picked:
    picked: Picked = [None] * layers
    undo: list[tuple[int, Choice | None]] = []
    spent = 0.0
    for step in steps:
        spent += step.cost
        if spent > budget:
            break
        undo.append((step.layer, picked[step.layer]))
        picked[step.layer] = step.choice
    while undo and cost_of(picked) > budget:  # by rounding alone
        layer, before = undo.pop()
        picked[layer] = before
    return picked


def _prefix_to(steps: Sequence[_Step], layers: int, needed: float) -> Picked | None:
    picked: Picked = [None] * layers
    gained = 0.0
    for step in steps:
        gained += step.gain
        picked[step.layer] = step.choice
        if gained >= needed and gain_of(picked) >= needed:
            return picked
    return None


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
