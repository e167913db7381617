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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

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
