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
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from .plan import Option

MOST_CAPS: Final = 48


@dataclass(frozen=True)
class Choice:
    """A way to run a layer. What gains nothing is never picked."""

    way: str
    gain: float
    cost: float
    """At least 0, finite."""


class _Step(NamedTuple):
    """From one choice of a layer, or none, to a dearer one."""

    layer: int
    choice: Choice
    gain: float
    cost: float

    @property
    def order(self) -> tuple[float, int, float]:
        slope = math.inf if self.cost == 0 else self.gain / self.cost
        return -slope, self.layer, self.choice.cost


Choices: TypeAlias = Sequence[Sequence[Choice]]
"""The choices of each layer."""
Picked: TypeAlias = list[Choice | None]
"""The choice that was picked for each layer; None: it stays as it is."""


def most_gain(layers: Choices, budget: float) -> Picked:
    """The picks that gain most, of those whose costs together are at most the budget."""
    found = [_single(layers, budget)]
    for steps in _orders(layers):
        count = bisect_right([*itertools.accumulate(step.cost for step in steps)], budget)
        while cost_of(picked := _taken(steps[:count], len(layers))) > budget:  # by rounding alone
            count -= 1
        found.append(picked)
    return max(found, key=gain_of)


def least_cost(layers: Choices, needed: float) -> Picked | None:
    """The picks that cost least, of those whose gains together are at least what is needed; None
    where all choices together do not gain that."""
    if needed <= 0:
        return [None] * len(layers)
    found = []
    for steps in _orders(layers):
        count = bisect_left([*itertools.accumulate(step.gain for step in steps)], needed) + 1
        while count <= len(steps):
            picked = _taken(steps[:count], len(layers))
            if gain_of(picked) >= needed:  # but for rounding, at once
                found.append(picked)
                break
            count += 1
    return min(found, key=cost_of, default=None)


def gain_of(picked: Picked) -> float:
    """The gain of all picks together."""
    return math.fsum(choice.gain for choice in picked if choice is not None)


def cost_of(picked: Picked) -> float:
    """The cost of all picks together."""
    return math.fsum(choice.cost for choice in picked if choice is not None)


def _taken(steps: Sequence[_Step], layers: int) -> Picked:
    picked: Picked = [None] * layers
    for step in steps:
        picked[step.layer] = step.choice
    return picked


def _single(layers: Choices, budget: float) -> Picked:
    """The one choice that gains most: with it the result is at least half of the best there is."""
    fitting = [
        _Step(index, choice, choice.gain, choice.cost)
        for index, choices in enumerate(layers)
        for choice in choices
        if choice.gain > 0 and choice.cost <= budget
    ]
    best = sorted(fitting, key=lambda step: (-step.gain, step.cost, step.layer))[:1]
    return _taken(best, len(layers))


def _orders(layers: Choices) -> Iterator[list[_Step]]:
    """The steps in the order in which they are taken, for each cap."""
    costs = sorted({choice.cost for choices in layers for choice in choices if choice.gain > 0})
    if len(costs) > MOST_CAPS:
        last = len(costs) - 1
        costs = [costs[round(i * last / (MOST_CAPS - 1))] for i in range(MOST_CAPS)]
    for cap in costs:
        steps = [
            step
            for index, choices in enumerate(layers)
            for step in _steps(index, [c for c in choices if c.cost <= cap])
        ]
        yield sorted(steps, key=lambda step: step.order)


def _steps(layer: int, choices: Sequence[Choice]) -> list[_Step]:
    """Along the upper hull of gain over cost, from nothing on."""
    hull = [Choice("", 0.0, 0.0)]
    for choice in sorted(choices, key=lambda c: (c.cost, -c.gain, c.way)):
        if choice.gain <= hull[-1].gain:
            continue
        while len(hull) > 1 and _bends_up(hull[-2], hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return [
        _Step(layer, choice, choice.gain - before.gain, choice.cost - before.cost)
        for before, choice in itertools.pairwise(hull)
    ]


def _bends_up(first: Choice, second: Choice, third: Choice) -> bool:
    """True if the way over the second is no better than the straight one to the third."""
    rise, run = second.gain - first.gain, second.cost - first.cost
    return rise * (third.cost - first.cost) <= (third.gain - first.gain) * run


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


def choices_of(options: Sequence[Option], target: str) -> list[Choice]:
    """The choices among a layer's options (the first is the layer as it is): the gain in seconds
    (target "time") or bytes, and as cost the square of the effect, as these add up. A choice that
    gains hardly more than one that costs less is left out."""
    timed = target == "time"
    own = options[0].amount(timed)
    noise = LEAST_GAIN * own
    choices = [
        Choice(option.way, own - option.amount(timed), option.effect**2)
        for option in options[1:]
        if option.why_not is None and option.effect is not None
    ]
    choices = [choice for choice in choices if choice.gain > (noise if timed else 0.0)]
    return [
        choice
        for choice in choices
        if not any(o.cost < choice.cost and choice.gain < o.gain + noise for o in choices)
    ]


def within_error(layers: Choices, max_error: float, floor: float, check: Check) -> Found:
    """The most gain whose measured error is at most the bound.

    floor: the error that any change makes, however small.
    Layers do not add up exactly: after each run the predicted error that is allowed is moved in
    proportion to what was measured, and halved between what was too little and what too much.
    """
    everything = most_gain(layers, math.inf)
    best = Found([None] * len(layers), 0.0, 0.0)
    allowed, low, high = max(0.1 * max_error, _less(max_error, floor)), 0.0, math.inf
    for _ in range(MOST_CHECKS):
        found = _checked(most_gain(layers, allowed**2), floor, check)
        if found.error <= max_error:
            low = allowed
            if gain_of(found.picked) > gain_of(best.picked):
                best = found
            if found.picked == everything or found.error > ENOUGH * max_error:
                break
        else:
            high = allowed
        beyond = _less(found.error, floor)
        proportion = _less(max_error, floor) / beyond if beyond > 0 else math.inf
        allowed = _next_allowed(allowed, low, high, proportion)
    return best


def _checked(picked: Picked, floor: float, check: Check) -> Found:
    """The picks with their errors; none has nothing to measure."""
    if not any(picked):
        return Found(picked, 0.0, 0.0)
    return Found(picked, check(picked), math.sqrt(cost_of(picked) + floor**2))


def _less(error: float, floor: float) -> float:
    """The rest of an error without the floor."""
    return math.sqrt(max(0.0, error**2 - floor**2))


def _next_allowed(allowed: float, low: float, high: float, proportion: float) -> float:
    wanted = allowed * min(4.0, max(0.1, 0.97 * proportion))
    if low < wanted < high:
        return wanted
    return (low + high) / 2 if math.isfinite(high) else 2 * allowed


def within_bytes(layers: Choices, saved: float, floor: float, check: Check) -> Found | None:
    """The least predicted error that saves so many bytes; None where nothing does."""
    picked = least_cost(layers, saved)
    return None if picked is None else _checked(picked, floor, check)
