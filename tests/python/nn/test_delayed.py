"""Delayed scaling: histories, and the scales that come from them."""

import copy
import dataclasses

import octofold
import pytest
from octofold import gemm, quantize

from tests.python.nn.layer_support import random

torch = pytest.importorskip("torch")

from octofold.nn.recipes.history import GRADIENT, INPUT, WEIGHT, delayed_scale, new_history  # noqa: E402

nn = octofold.nn


def recipe_of(history=4, margin=0):
    return dataclasses.replace(nn.recipes.delayed, delayed=nn.Delayed(history, margin))


@pytest.mark.parametrize("margin", [0, 2])
def test_scale_is_that_of_the_steps_before(margin):
    delayed = nn.Delayed(history=3, margin=margin)
    history = new_history(delayed)[0]
    largest = [5.0, 2.0, 3.0, 1.0, 4.0, 4.0]
    before = [5.0, 5.0, 5.0, 5.0, 3.0, 4.0]  # the first has none: its own
    for amax, expected in zip(largest, before, strict=True):
        x = random(7, 300)
        x *= -amax / x.abs().max()
        scale = delayed_scale(x, history, "e4m3", delayed)
        assert scale.shape == (1,)
        assert float(scale) == pytest.approx(expected * 2**margin / 448, rel=1e-6)
    assert history.tolist() == pytest.approx([4.0, 4.0, 1.0])


def test_scale_of_nothing_and_of_zeros():
    delayed = nn.Delayed(history=3)
    history = new_history(delayed)[0]
    assert float(delayed_scale(torch.zeros(3, 300), history, "e5m2", delayed)) == 1
    assert float(delayed_scale(torch.zeros(0, 300), history, "e5m2", delayed)) == 1
    assert not history.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_propagates_and_is_forgotten(value):
    layer = nn.Linear(300, 200, recipe=recipe_of())
    x, dy = random(65, 300), random(65, 200)
    layer(x.requires_grad_()).backward(dy)
    bad, bad_dy = x.detach().clone(), dy.clone()
    bad[3, 7] = bad_dy[3, 7] = value
    assert layer(bad).isnan().all()
    leaf = x.detach().clone().requires_grad_()
    layer.weight.grad = None
    layer(leaf).backward(bad_dy)
    assert leaf.grad.isnan().all()
    assert layer.weight.grad.isnan().all()
    assert layer.amax_history.isfinite().all()
    layer.weight.grad = None
    layer(x).backward(dy)
    assert layer.weight.grad.isfinite().all()


def test_history_of_a_layer():
    """One entry a step of x, of the weight and of the gradient; in training alone."""
    layer = nn.Linear(300, 200, recipe=recipe_of(history=3))
    seen = {INPUT: [], WEIGHT: [], GRADIENT: []}
    for _ in range(2):
        x, dy = random(65, 300), random(65, 200)
        layer(x.requires_grad_()).backward(dy)
        seen[INPUT].insert(0, float(x.detach().abs().max()))
        seen[WEIGHT].insert(0, float(layer.weight.detach().abs().max()))
        seen[GRADIENT].insert(0, float(dy.abs().max()))
    for row, amaxes in seen.items():
        expected = amaxes + [0.0] * (3 - len(amaxes))
        assert layer.amax_history[row].tolist() == pytest.approx(expected)
    with torch.no_grad():
        layer.weight.mul_(2)
    before = layer.amax_history.clone()
    layer.eval()
    layer(random(65, 300))
    assert torch.equal(layer.amax_history, before)


def test_scales_are_used():
    layer = nn.Linear(300, 200, bias=False, recipe=recipe_of())
    layer(random(65, 300))
    x = random(65, 300) * 100  # beyond the scale of the step before: saturates
    scale = layer.amax_history[INPUT].max() / 448
    weight = quantize(
        layer.weight.detach(), "tensor te", scale=layer.amax_history[WEIGHT].max().view(1) / 448
    )
    expected = gemm(quantize(x, "tensor te", scale=scale.view(1)), weight, out_dtype="float32")
    assert torch.equal(layer(x), expected)


def test_history_is_no_part_of_files_but_of_copies():
    layer = nn.Linear(300, 200, recipe="delayed")
    layer(random(65, 300).requires_grad_()).sum().backward()
    assert "amax_history" not in layer.state_dict()
    assert torch.equal(copy.deepcopy(layer).amax_history, layer.amax_history)
    assert layer.amax_history.shape == (3, 1024)
    history = layer.amax_history.clone()
    layer.half()
    assert torch.equal(layer.amax_history, history)
    assert layer.to_linear().state_dict().keys() == {"weight", "bias"}
    assert not list(layer.to_linear().buffers())
    assert nn.Linear(3, 5).amax_history is None
