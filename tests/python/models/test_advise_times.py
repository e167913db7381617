"""How times are taken and used, with a clock of the test's in place of a GPU's."""

import sys
import time
from collections import Counter

import octofold
import pytest
from octofold import _timing
from octofold.models.advisor import times
from octofold.models.advisor.ways import OWN

from tests.python.models.advise_support import make_ids, make_model, torch

models = octofold.models
SECONDS = {OWN: 1e-3, "blockwise": 6e-4, "rowwise": 5e-4, "tensorwise": 9.95e-4, "cast": 2e-3}
"""The seconds of a call of a layer, by the names of what is run."""


class Event:
    """One that the CPU's clock moves."""

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return max(1e-6, 1e3 * (end.at - self.at))


@pytest.fixture
def clock(monkeypatch):
    """Times of the CPU, in calls from Python."""
    advise_module = sys.modules["octofold.models.advisor.advise"]
    monkeypatch.setattr(advise_module, "measurable", lambda device: True)
    monkeypatch.setattr(advise_module, "why_no_graph", lambda runs, model: "this is no GPU")
    monkeypatch.setattr(_timing, "new_event", Event)


@pytest.fixture
def known(clock, monkeypatch):
    """Times that are known; the names of ways that were timed, a list for each group and kind."""
    timed = []

    def sampler(modules, x, kind, graph):
        assert x.shape == (kind.rows, modules[0].in_features)
        assert not graph
        weight = modules[0].weight
        if not isinstance(weight, octofold.nn.Fp8Weight):
            return OWN
        return "cast" if weight.recipe is None else weight.recipe.name

    def medians(samplers):
        timed.append(list(samplers))
        return [SECONDS[name] for name in samplers]

    monkeypatch.setattr(times, "_sampler", sampler)
    monkeypatch.setattr(times, "_medians", medians)
    monkeypatch.setattr(times, "medians", lambda samplers, rounds, warm_up: [20e-3, 17.5e-3])
    return timed


def test_times_are_measured_once_for_layers_that_are_alike(known):
    plan = models.advise(make_model(), [make_ids(), make_ids(1, 3)], max_error=1.0)
    assert plan.target == "time"
    assert plan.timing == "calls from Python"
    assert any("this is no GPU" in note for note in plan.notes)
    assert known == [[*SECONDS]] * 6  # up, down and head, of 80 rows and of 3
    for layer in plan.layers[:5]:
        assert layer.option("blockwise").seconds == pytest.approx(2 * SECONDS["blockwise"])
        assert layer.option("weight-only-channel").seconds is None
        assert layer.chosen == "rowwise"
    assert plan.whole.seconds_own == 20e-3
    assert plan.whole.seconds_predicted == pytest.approx(20e-3 - 5 * 2 * 5e-4)
    assert plan.whole.seconds_planned == 17.5e-3
    assert plan.whole.seconds_own_from_python is None
    assert models.Plan.from_json(plan.to_json()) == plan
    text = models.text_report(plan)
    for words in ("1.14 × as fast; predicted 15 ms", "20 ms", "17.5 ms", "2.00 ×"):
        assert words in text


def test_the_page_shows_times(known):
    pytest.importorskip("matplotlib")
    page = models.html_report(models.advise(make_model(), make_ids(), ways=["rowwise"]))
    assert "line: measured" in page
    assert "1.14 × as fast" in page


def test_what_is_no_faster_is_never_chosen(known):
    plan = models.advise(make_model(), make_ids(), max_error=1.0, ways=["tensorwise", "cast"])
    assert not plan.changed
    assert plan.layers[0].why_own == "no way is faster here"
    assert plan.whole.error == 0


def test_under_a_bound_the_faster_ways_go_where_they_harm_least(known):
    plans = [models.advise(make_model(), make_ids(), max_error=e) for e in (0.02, 0.03, 0.2)]
    gains = [plan.whole.seconds_own - plan.whole.seconds_predicted for plan in plans]
    assert gains == sorted(gains)
    assert 0 < gains[0] < gains[-1]
    assert all(plan.whole.error <= plan.max_error for plan in plans)


def test_a_plan_that_is_not_faster_in_fact_is_dropped(known, monkeypatch):
    monkeypatch.setattr(times, "medians", lambda samplers, rounds, warm_up: [20e-3, 21e-3])
    plan = models.advise(make_model(), make_ids(), max_error=1.0)
    assert not plan.changed
    assert any("was not faster" in note for note in plan.notes)
    assert plan.whole.bytes_planned == plan.whole.bytes_own
    assert plan.layers[0].option("blockwise").seconds < plan.layers[0].own.seconds
    assert "the model as a whole is no faster" in plan.layers[0].why_own


def test_with_a_real_clock(clock):
    """Every part of it, as on a GPU but for graphs."""
    model = make_model(width=64, blocks=1)
    plan = models.advise(model, make_ids(), max_error=0.5, ways=["cast"])
    own = plan.layers[0].own
    assert own.seconds > 0
    assert plan.whole.seconds_own > 0
    measured = [layer for layer in plan.layers if layer.calls]
    assert all(o.seconds > 0 for layer in measured for o in layer.options if not o.why_not)


def test_layers_are_timed_under_the_autocast_of_their_calls(clock):
    from octofold.models.advisor.layers import Kind

    linear, seen = torch.nn.Linear(8, 8), []
    linear.register_forward_hook(lambda layer, given, y: seen.append(y.dtype))
    kind = Kind(3, torch.float32, torch.bfloat16)
    times._sampler([linear], torch.randn(3, 8), kind, graph=False)()
    assert {*seen} == {torch.bfloat16}


def test_kinds_that_are_many_are_timed_by_the_nearest():
    from octofold.models.advisor.layers import Kind

    def kind(rows, dtype=torch.float16):
        return Kind(rows, dtype, None)

    calls = Counter({kind(rows): 1 for rows in (1, 2, 100, 110, 1000, 2000)})
    counts = times._timed_kinds(calls)
    assert counts == {kind(100): 3, kind(110): 1, kind(1000): 1, kind(2000): 1}
    assert counts.total() == calls.total()


def test_weights_take_turns_as_in_the_model():
    """Copies where a layer's own are too few to be as cold as in a model, and no more."""
    from octofold.models.advisor.layers import Candidate
    from octofold.models.advisor.times import _sets

    def group(count, features):
        linears = [torch.nn.Linear(features, features) for _ in range(count)]
        return [Candidate(str(i), linear) for i, linear in enumerate(linears)]

    few = group(2, 256)
    sets = list(_sets(few, all_bytes=2**20))
    assert len(sets) == 4  # of 256 KiB: 1 MiB, as the model has
    assert [sets[0], sets[1]] == [candidate.linear for candidate in few]
    assert torch.equal(sets[2].weight, sets[0].weight)
    assert sets[2].weight.data_ptr() != sets[0].weight.data_ptr()
    assert len(list(_sets(group(1, 64), all_bytes=2**40))) == times.MOST_SETS
    assert len(list(_sets(group(6, 256), all_bytes=2**19))) == 2
