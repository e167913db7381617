"""octofold.nn.Linear as a module: what torch does with modules."""

import contextlib

import octofold
import pytest
import torch

from tests.python.nn.layer_support import NAMES, random, relative_error, step

nn = octofold.nn


def case(**options):
    return nn.Linear(300, 200, **options), random(2, 65, 300), random(2, 65, 200)


def test_functional_call_takes_the_weights_that_it_is_given():
    layer, x, dy = case()
    step(layer, x, dy=dy)
    other = {"weight": random(200, 300), "bias": random(200)}
    expected = octofold.linear(x, **other)
    assert torch.equal(torch.func.functional_call(layer, other, x), expected)
    assert not torch.equal(layer(x), expected)


def test_parametrized_weight():
    layer, x, dy = case()
    torch.nn.utils.parametrizations.weight_norm(layer)
    first = step(layer, x, dy=dy)
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(2)
    assert relative_error(step(layer, x, dy=dy)[0] - layer.bias, 2 * (first[0] - layer.bias)) < 0.05


@pytest.mark.parametrize("recipe", NAMES)
def test_inference_mode_leaves_nothing_that_training_trips_over(recipe):
    layer, x, dy = case(recipe=recipe)
    with torch.inference_mode():
        y = layer(x)
    assert torch.equal(step(layer, x, dy=dy)[0], y)
    with torch.inference_mode():
        made_there = nn.Linear(300, 200)
        assert made_there(x).shape == (2, 65, 200)


def test_moves_and_converts():
    for recipe in NAMES:
        layer, x, dy = case(recipe=recipe)
        step(layer, x, dy=dy)
        layer.bfloat16()
        assert layer(x.bfloat16()).dtype == torch.bfloat16
        assert layer.weight.dtype == torch.bfloat16
        assert layer.to("meta")(x.bfloat16().to("meta")).shape == (2, 65, 200)


def test_extra_repr():
    assert str(nn.Linear(3, 5)) == (
        "Linear(in_features=3, out_features=5, bias=True, recipe=blockwise)"
    )


@pytest.mark.parametrize("kept", [False, True])
def test_what_does_not_fit_is_said_in_the_layers_words(kept):
    layer = nn.Linear(300, 200)

    def refuses(argument, call):
        message = rf"octofold\.nn\.Linear: argument '{argument}"
        holding = nn.keep_casts(layer) if kept else contextlib.nullcontext()
        with holding, pytest.raises(octofold.InvalidArgumentError, match=message):
            call()

    refuses("x': expected", lambda: layer(random(5, 299)))
    refuses("x'", lambda: layer(random(5, 300).double()))
    narrow = {"bias": random(199)}
    refuses("bias'", lambda: torch.func.functional_call(layer, narrow, random(5, 300)))
    wide = nn.Linear(300, 200, dtype=torch.float64)
    refuses("weight': .*float64", lambda: wide(random(5, 300)))


def test_fp8_state_is_refused():
    layer, x, _ = case()
    before, codes = layer(x), layer.weight.detach().to(torch.float8_e4m3fn)
    model, state = torch.nn.Sequential(layer), {"0.weight": codes, "0.bias": layer.bias}
    with pytest.raises(
        RuntimeError, match=r"'0.weight': expected bfloat16, .*float8_e4m3fn: .*Fp8Weight"
    ):
        model.load_state_dict(state)
    assert torch.equal(layer(x), before)
