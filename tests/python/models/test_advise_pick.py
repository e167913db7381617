"""The picking: never beyond the bound, more under a looser one, and no worse than plain rules."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from octofold.models.advisor.search import Choice, cost_of, gain_of, least_cost, most_gain

NUMBERS = st.floats(0, 1e3, allow_subnormal=False)
CHOICES = st.builds(Choice, st.sampled_from("abcd"), st.floats(-10, 1e3), NUMBERS)
LAYERS = st.lists(st.lists(CHOICES, max_size=4), max_size=7)
SOME = settings(max_examples=150, deadline=None)


def every(layers):
    """All picks that there are."""
    return itertools.product(*[[None, *choices] for choices in layers])


@SOME
@given(LAYERS, NUMBERS)
def test_the_bound_is_kept_and_gains_are_sums(layers, budget):
    picked = most_gain(layers, budget)
    assert len(picked) == len(layers)
    assert all(c is None or c in choices for c, choices in zip(picked, layers, strict=True))
    assert cost_of(picked) <= budget
    assert gain_of(picked) == math.fsum(c.gain for c in picked if c is not None)
    assert all(c is None or c.gain > 0 for c in picked)
    assert picked == most_gain(layers, budget)


@SOME
@given(LAYERS, NUMBERS, NUMBERS)
def test_a_looser_bound_gains_no_less(layers, one, other):
    low, high = sorted((one, other))
    assert gain_of(most_gain(layers, low)) <= gain_of(most_gain(layers, high))


@SOME
@given(LAYERS)
def test_without_a_bound_each_layer_has_its_best(layers):
    best = math.fsum(max((c.gain for c in choices if c.gain > 0), default=0) for choices in layers)
    assert gain_of(most_gain(layers, math.inf)) == best


@SOME
@given(st.lists(st.lists(CHOICES, max_size=3), max_size=4), NUMBERS)
def test_beside_the_best_that_there_is(layers, budget):
    """At least half of it."""
    picks = [pick for pick in every(layers) if cost_of(pick) <= budget]
    best = max(gain_of(pick) for pick in picks)
    assert best * 0.4999999 <= gain_of(most_gain(layers, budget)) <= best


@SOME
@given(LAYERS, NUMBERS)
def test_what_is_needed_is_gained(layers, needed):
    picked = least_cost(layers, needed)
    best = gain_of(most_gain(layers, math.inf))
    if picked is None:
        assert best < needed
    else:
        assert gain_of(picked) >= needed
        less = least_cost(layers, needed / 2)
        assert cost_of(less) <= cost_of(picked)


def test_a_dear_layer_does_not_shut_out_the_others():
    dear = [Choice("w", 100.0, 50.0)]
    cheap = [[Choice("w", 1.0, 1.0)] for _ in range(5)]
    assert most_gain([dear, *cheap], 5.0) == [None, *[c[0] for c in cheap]]


def test_steps_go_to_a_dearer_way_where_that_is_worth_it():
    layer = [Choice("safe", 1.0, 1.0), Choice("bold", 1.9, 2.0), Choice("dear", 1.2, 1.9)]
    ways = [most_gain([layer], budget)[0] for budget in (0.5, 1.0, 1.95, 2.0)]
    assert [way and way.way for way in ways] == [None, "safe", "dear", "bold"]


def test_ties_go_to_the_earlier_layer():
    layers = [[Choice("w", 1.0, 1.0)] for _ in range(4)]
    assert most_gain(layers, 2.0) == [layers[0][0], layers[1][0], None, None]
