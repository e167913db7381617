"""Models to FP8 layers, and back; what every conversion takes; layers that torch parametrized."""

import octofold
import pytest
import torch
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from tests.python.nn.layer_support import random

nn = octofold.nn
CONVERSIONS = (
    nn.convert,
    nn.convert_weight_only,
    nn.convert_experts,
    nn.convert_norms,
    nn.convert_rotary,
)


class Special(torch.nn.Linear):
    pass


def new_model():
    shared = torch.nn.Linear(16, 16)
    return torch.nn.ModuleDict(
        {
            "first": torch.nn.Linear(16, 16, bias=False),
            "block": torch.nn.Sequential(shared, torch.nn.ReLU(), shared),
            "special": Special(16, 16),
            "attention": torch.nn.MultiheadAttention(16, 2),
            "again": shared,
            "head": torch.nn.Linear(16, 3),
        }
    )


def kinds(model):
    return {
        name: type(module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.Linear)
    }


def test_the_report_is_no_model():
    report = nn.convert(new_model())
    for use, error in ((report, TypeError), (lambda x: report.eval(), AttributeError)):
        with pytest.raises(error, match=r"the report of .* changed the model in place \(\.model"):
            use(random(2, 16))


CONVERTED = {"first", "block.0", "block.2", "again", "head"}


def test_converts_in_place_and_back():
    model = new_model()
    before, parameters = kinds(model), list(model.parameters())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert nn.convert(model, "rowwise", main_grad=True, force_fp8=True).model is model
    after = kinds(model)
    assert {name for name, kind in after.items() if kind is nn.Linear} == CONVERTED
    assert {name: after[name] for name in after.keys() - CONVERTED} == {
        name: before[name] for name in before.keys() - CONVERTED
    }
    assert model["block"][0] is model["block"][2] is model["again"]
    head = model["head"]
    assert (head.recipe, head.main_grad, head.force_fp8) == (nn.recipes.rowwise, True, True)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == list(state)

    assert nn.restore(model) is model
    assert kinds(model) == before
    assert model["block"][0] is model["block"][2] is model["again"]
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert vars(model["head"]).keys() == vars(torch.nn.Linear(3, 3)).keys()
    x = random(5, 16)
    expected = torch.nn.functional.linear(x, state["head.weight"], state["head.bias"])
    assert torch.equal(model["head"](x), expected)
    assert nn.restore(model) is model  # there is nothing left to do


def test_model_may_be_a_layer():
    linear = torch.nn.Linear(16, 3)
    layer = nn.convert(linear).model
    assert type(layer) is nn.Linear
    assert type(linear) is torch.nn.Linear
    assert layer.weight is linear.weight
    back = nn.restore(layer)
    assert type(back) is torch.nn.Linear
    assert back.weight is linear.weight


def test_filter_has_names_and_modules():
    asked = []

    def filter_fn(module, fqn):
        asked.append((type(module), fqn))
        return fqn != "head"

    model = nn.convert(new_model(), module_filter_fn=filter_fn).model
    # Each layer once, by its first name.
    linear = torch.nn.Linear
    assert asked == [(linear, "first"), (linear, "block.0"), (linear, "head")]
    assert type(model["head"]) is linear
    assert type(model["again"]) is nn.Linear
    nn.convert(model, "rowwise", lambda module, fqn: fqn == "head")
    assert [model[name].recipe.name for name in ("first", "head")] == ["blockwise", "rowwise"]


def test_keeps_hooks_mode_and_attributes():
    model = torch.nn.Sequential(torch.nn.Linear(16, 3))
    calls = []
    handle = model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].weight.requires_grad_(False)
    model[0].tag = "first"
    model.eval()
    nn.convert(model)
    model(random(5, 16))
    assert calls == ["forward"]
    assert model[0].tag == "first"
    assert not model[0].training
    assert not model[0].weight.requires_grad
    handle.remove()
    model(random(5, 16))
    assert calls == ["forward"]
    assert nn.restore(model)[0].tag == "first"


@pytest.mark.parametrize("change", [*CONVERSIONS, nn.restore])
def test_what_conversions_take(change):
    linear = torch.nn.Linear(3, 3)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'model': .*Module, got list"):
        change([linear])
    if change is not nn.restore:
        message = r"'module_filter_fn': expected a function \(module, fqn\)"
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            change(linear, module_filter_fn="head")


def test_converting_twice():
    model = nn.convert(new_model(), module_filter_fn=lambda module, fqn: fqn == "head").model
    before = kinds(model)
    with pytest.raises(octofold.InvalidArgumentError, match=r"not converted yet .* at 'head'"):
        nn.convert(model)
    assert kinds(model) == before


@pytest.mark.parametrize("parametrize", [weight_norm, spectral_norm])
def test_to_linear_refuses_and_leaves_the_layer(parametrize):
    layer = parametrize(nn.Linear(32, 16, force_fp8=True)).eval()
    x = random(4, 32)
    before, names = layer(x), set(layer.state_dict())
    with pytest.raises(octofold.InvalidArgumentError, match="one that computes its weight"):
        layer.to_linear()
    assert torch.equal(layer(x), before)
    assert set(layer.state_dict()) == names
    with pytest.raises(octofold.InvalidArgumentError, match="parametrized"):
        nn.restore(torch.nn.Sequential(layer))
    remove_parametrizations(layer, "weight")
    back = layer.to_linear()
    assert type(back) is torch.nn.Linear
    assert back.weight is layer.weight
    assert set(back._buffers) == set()
    assert back(x).shape == (4, 16)
