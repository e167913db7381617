"""octofold.models.advise and apply: what is measured is so, the bound holds, the model is left
alone until it is applied."""

import copy
import itertools
import sys

import octofold
import pytest
from octofold.models.advisor.report import megabytes
from octofold.models.advisor.ways import WAYS

from tests.python.models.advise_support import make_ids, make_model, torch
from tests.python.nn.layer_support import relative_error

models = octofold.models
LINEARS = [f"blocks.{i}.{part}" for i in range(2) for part in ("up", "down")]


@pytest.fixture(scope="module")
def plan():
    return models.advise(make_model(), make_ids(), max_error=0.04)


def answer(model, *inputs):
    with torch.no_grad():
        return model.eval()(*inputs)["logits"]


def test_errors_are_those_of_the_layers(plan):
    model = make_model()
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda module, x, name=name: seen.__setitem__(name, x[0])
            )
    answer(model, make_ids())
    for layer in plan.layers:
        if not layer.calls:
            continue
        linear = copy.deepcopy(model.get_submodule(layer.name))
        linear._forward_pre_hooks.clear()
        with torch.no_grad():
            exact = linear(seen[layer.name])
            for option in layer.options[1:]:
                if option.why_not is None:
                    made = WAYS[option.way].make(linear)
                    expected = relative_error(made(seen[layer.name]), exact)
                    assert option.error == pytest.approx(expected, rel=1e-4)
                    buffers = [*made.parameters(), *made.buffers()]
                    assert option.bytes == sum(b.nbytes for b in buffers)
                    assert 1e-3 < option.error < 0.06


def test_effects_are_those_of_one_layer_alone(plan):
    reference = answer(make_model(), make_ids())
    for layer in plan.layers[:2]:
        model = make_model()
        linear = model.get_submodule(layer.name)
        model.set_submodule(layer.name, WAYS["blockwise"].make(linear))
        effect = relative_error(answer(model, make_ids()), reference)
        blockwise, cast = layer.option("blockwise"), layer.option("cast")
        assert blockwise.effect == pytest.approx(effect, rel=1e-4)
        assert cast.effect == pytest.approx(effect * cast.error / blockwise.error, rel=1e-4)


def test_layers_are_in_the_order_of_the_calls_and_all_are_named(plan):
    assert [layer.name for layer in plan.layers] == [*LINEARS, "head", "unused"]
    assert plan.layers[-1].chosen == "own"
    assert "do not call" in plan.layers[-1].why_own
    assert [calls.rows for calls in plan.layers[0].calls] == [80]
    (convolution,) = plan.others
    assert (convolution.kind, convolution.count) == ("Conv1d", 1)
    assert "no operation" in convolution.why


def test_without_a_gpu_times_are_left_out_and_said_so(plan):
    assert plan.machine == "cpu"
    assert plan.timing is None
    assert plan.target == "bytes"
    assert all(option.seconds is None for layer in plan.layers for option in layer.options)
    assert plan.whole.seconds_own is None
    assert any("without a GPU" in note for note in plan.notes)
    reasons = {o.why_not for o in plan.layers[0].options if o.way.startswith("weight-only")}
    assert reasons == {"its input is float32: takes float16 or bfloat16"}


@pytest.mark.parametrize(
    ("count", "words"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (-2e9, "−2 GB")],
)
def test_bytes_in_words(count, words):
    assert megabytes(count) == words


def test_charts_need_matplotlib_and_say_so(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(octofold.UnavailableError, match=r"matplotlib: pip install 'octofold\[tool"):
        models.html_report(plan)


@pytest.mark.parametrize("max_error", [1e-6, 0.01, 0.025, 1.0])
def test_applied_the_bound_holds_and_the_numbers_are_the_plans(max_error):
    model, ids = make_model(), make_ids()
    model.train()
    before = copy.deepcopy(model.state_dict())
    plan = models.advise(model, ids, max_error=max_error)
    assert model.training
    both = zip(before.values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in both)
    reference = answer(copy.deepcopy(model), ids)
    changed = models.apply(model, plan)
    assert changed is model
    error = relative_error(answer(model, ids), reference)
    assert error <= max_error
    assert plan.whole.error == pytest.approx(error, rel=1e-4)
    tensors = [*model.parameters(), *model.buffers()]
    assert plan.whole.bytes_planned == sum(t.nbytes for t in tensors)
    assert len(plan.changed) == {1e-6: 0, 1.0: 5}.get(max_error, len(plan.changed))
    for layer in plan.layers:
        module = model.get_submodule(layer.name)
        is_own = type(module) is torch.nn.Linear and type(module.weight) is torch.nn.Parameter
        assert is_own == (layer.chosen == "own") == (layer.why_own is not None)
    if plan.changed:
        assert plan.whole.error_predicted == pytest.approx(error, rel=0.5)


def test_the_error_under_a_bound_on_bytes():
    model, ids = make_model(), make_ids()
    plans = [models.advise(model, ids, max_bytes=n) for n in (10**9, 800_000, 500_000)]
    assert [plan.target for plan in plans] == ["error"] * 3
    assert not plans[0].changed
    assert all(plan.whole.bytes_planned <= plan.max_bytes for plan in plans)
    errors = [plan.whole.error for plan in plans]
    assert errors == sorted(errors)
    with pytest.raises(octofold.InvalidArgumentError, match=r"max_bytes.*at least \d+.*got 1000$"):
        models.advise(model, ids, max_bytes=1000)


def test_same_measurements_same_plan(plan):
    assert models.advise(make_model(), make_ids(), max_error=0.04) == plan


def test_every_form_of_inputs():
    model, ids = make_model(), make_ids()
    forms = [ids, (ids,), {"ids": ids}, [(ids,)], lambda model: model(ids)]
    plans = [models.advise(model, form, max_error=0.03, ways=["cast"]) for form in forms]
    assert all(plan.layers == plans[0].layers for plan in plans)
    several = [ids, {"ids": ids[:, :7], "scale": 2.0}, lambda model: [model(ids[:1])]]
    plan = models.advise(model, several, max_error=0.03, ways=["cast"])
    assert plan.runs == 3
    assert [calls.rows for calls in plan.layers[0].calls] == [80, 14, 40]


def test_random_models_are_run_from_one_seed():
    model, ids = make_model(), make_ids()

    def noisy(model):
        return model(ids)["logits"] + torch.randn(2, 40, 30)

    state = torch.get_rng_state()
    plan = models.advise(model, noisy, max_error=0.03, ways=["cast"])
    assert torch.equal(torch.get_rng_state(), state)
    assert plan.whole.error <= 0.03
    assert plan.changed
    assert not any("run to run" in note for note in plan.notes)


def test_autocast_is_seen():
    model, ids = make_model(), make_ids()

    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            return model(ids)

    plan = models.advise(model, run, max_error=0.1)
    assert {calls.dtype for layer in plan.layers for calls in layer.calls} == {"bfloat16"}
    usable = [option.way for option in plan.layers[0].options if option.why_not is None]
    assert "weight-only-128x128" in usable
    models.apply(model, plan)
    assert run(model)["logits"].dtype == torch.bfloat16


def test_one_linear_layer_alone():
    linear, x = torch.nn.Linear(64, 32), torch.randn(10, 64)
    plan = models.advise(linear, x, max_error=0.1)
    assert plan.layers[0].name == ""
    layer = models.apply(linear, plan)
    assert layer.weight.compute == "copy"
    with torch.no_grad():
        error = relative_error(layer(x), linear(x))
    assert error == pytest.approx(plan.whole.error, rel=1e-3)


def test_a_layer_in_two_places_stays_one():
    shared = torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    plan = models.advise(model, torch.randn(10, 64), max_error=0.2)
    assert [layer.name for layer in plan.layers] == ["0"]
    assert plan.layers[0].calls[0].count == 2
    models.apply(model, plan)
    assert model[0] is model[2]
    assert model[0].weight.compute == "copy"


def test_a_call_without_rows_counts_for_nothing():
    linear, x = torch.nn.Linear(64, 64), torch.randn(10, 64)
    plan = models.advise(linear, lambda model: model(x) + model(x[:0]).sum(), max_error=0.2)
    (layer,) = plan.layers
    assert [(calls.rows, calls.count) for calls in layer.calls] == [(10, 1)]


def test_what_must_stay_is_left_alone_and_why_is_said():
    class Odd(torch.nn.Linear):
        pass

    model = make_model()
    model.head = torch.nn.Linear(128, 50, bias=False)
    model.head.weight = model.embed.weight
    model.blocks[0].up.register_forward_hook(lambda *_: None)
    model.blocks[1].up.__class__ = Odd
    down = model.blocks[0].down
    down.forward = lambda x: torch.nn.functional.linear(x, down.weight, down.bias)
    plan = models.advise(model, make_ids(), max_error=0.5)
    why = {layer.name: layer.why_own for layer in plan.layers}
    assert "tied: embed.weight" in why["head"]
    assert "hooks" in why["blocks.0.up"]
    assert "forward was replaced" in why["blocks.0.down"]
    assert why["blocks.1.down"] is None
    assert ("Odd", 1) in [(other.kind, other.count) for other in plan.others]
    models.apply(model, plan)
    assert model.head.weight is model.embed.weight


def test_rounding_is_told_from_fp8():
    """Effects of layers are those of FP8, whatever the model's dtype rounds."""
    ids = make_ids()
    plans = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model(blocks=6).to(dtype)
        plans[dtype] = models.advise(model, ids, max_error=0.5, ways=["cast"])
    exact, rounded = plans.values()
    assert exact.whole.error_own == 0
    assert 1e-3 < rounded.whole.error_own < 1e-2
    assert rounded.layers[0].own.error == pytest.approx(1.7e-3, rel=0.2)
    for plan in plans.values():
        assert plan.whole.error_predicted == pytest.approx(plan.whole.error, rel=0.25)
    for one, other in zip(exact.layers, rounded.layers, strict=True):
        if one.calls:
            assert other.options[1].effect == pytest.approx(one.options[1].effect, rel=0.4)


def test_effects_may_be_left_out():
    plan = models.advise(make_model(), make_ids(), max_error=0.03, effects=False)
    for option in plan.layers[0].options[1:]:
        assert option.effect == option.error
    assert plan.whole.error <= 0.03


def test_progress_goes_up_to_all():
    steps = []
    models.advise(make_model(), make_ids(), progress=lambda *step: steps.append(step))
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1] > 5
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(steps))


class StopError(Exception):
    pass


@pytest.mark.parametrize("step", [0, 3])
def test_the_model_is_as_it_was_after_a_failure(step):
    model = make_model()
    before = {name: id(module) for name, module in model.named_modules()}

    def progress(done, total):
        if done == step:
            raise StopError

    with pytest.raises(StopError):
        models.advise(model, make_ids(), progress=progress)
    assert {name: id(module) for name, module in model.named_modules()} == before
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training
