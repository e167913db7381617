"""octofold._timing, with the processor's clock; tests/gpu has graphs and events."""

import time

import pytest
from octofold._timing import CPU, Method, Timing, medians, screened, set_count, spread, take_turns


def named(order, name):
    def sample():
        order.append(name)
        return float(len(order))

    return sample


def test_turns_rotate():
    order = []
    samples = take_turns([named(order, name) for name in "abc"], rounds=4)
    assert "".join(order) == "abcbcacababc"
    assert samples[1] == [2, 4, 9, 11]


def test_warm_up_does_not_count():
    order = []
    assert medians([named(order, name) for name in "ab"], 2, warm_up=1) == [4.5, 4.5]
    assert "".join(order) == "abbaab"


def test_a_budget_ends_the_rounds():
    order = []
    samples = take_turns([named(order, "a")], rounds=9, least=5, budget=0)
    assert len(samples[0]) == 5


def test_there_is_a_rest_where_the_turn_passes_on(monkeypatch):
    rests = []
    monkeypatch.setattr(time, "sleep", rests.append)
    take_turns([lambda: 1.0, lambda: 1.0], rounds=3, between=0.25)
    assert rests == [0.25] * 3  # a b, b a, a b


@pytest.mark.parametrize("kind", ["wall", "host"])
def test_a_sample_is_the_mean_of_its_calls(kind):
    made = []
    calls = [lambda: made.append(time.sleep(1e-3)), lambda: made.append(time.sleep(2e-3))]
    sampler = Method(kind, rest=0.0, passes=3).sampler(calls)
    assert not made
    assert 1.5e-3 <= sampler() < 0.1
    assert len(made) == 6


def test_passes_fill_the_window(monkeypatch):
    made = []  # each takes a millisecond of a clock of their own
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-3 * len(made))
    sampler = Method("wall", window=20e-3, rest=0.0).sampler([lambda: made.append(None)])
    before = len(made)
    sampler()
    assert 19 <= len(made) - before <= 20


def test_only_the_fastest_are_timed_again():
    order = []
    samplers = {name: lambda name=name: order.append(name) or float(name) for name in "4213"}
    first, last = screened(samplers, {"9": lambda: 9.0}, rounds=5, finalists=2)
    assert {name: timing.microseconds for name, timing in first.items()} == {
        name: float(name) * 1e6 for name in "4213"
    }
    assert list(last) == ["1", "2", "9"]
    assert order.count("1") == 8
    assert order.count("4") == 3


def test_the_fastest_may_be_timed_again_in_another_way():
    samplers = {name: lambda name=name: float(name) for name in "4213"}
    again = {name: lambda name=name: 10.0 - float(name) for name in "1234"}
    _, last = screened(samplers, {}, rounds=2, finalists=2, again=again.__getitem__)
    assert {name: timing.microseconds for name, timing in last.items()} == {"1": 9e6, "2": 8e6}


def test_timing_is_a_median_and_a_spread():
    assert Timing.of([1e-6, 2e-6, 3e-6]) == Timing(pytest.approx(2.0), pytest.approx(0.5))
    assert spread([1.0, 1.0, 1.0]) == 0
    assert str(Timing(12.34, 0.015)) == "12.3 ±1.5%"


def test_sets_exceed_the_cache():
    assert set_count(100_000_000) == 3
    assert set_count(1, most=64) == 64
    assert set_count(10**9) == 1


def test_without_a_gpu_nothing_of_torch_is_needed():
    assert CPU.sampler([lambda: None])() >= 0
