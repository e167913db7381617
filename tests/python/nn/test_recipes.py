"""Recipes as values: what they are made of; batch-invariant ones, whose tokens do not depend on one
another."""

import dataclasses
import pickle

import octofold
import torch

from tests.python.nn.layer_support import every, random

nn = octofold.nn
BLOCKWISE = nn.recipes.batch_invariant("blockwise")


def test_names():
    for name, recipe in nn.recipes.NAMED.items():
        assert getattr(nn.recipes, name) is recipe
        assert (recipe.name, str(recipe)) == (name, name)
        assert pickle.loads(pickle.dumps(recipe)) == recipe
        assert nn.Linear(3, 5, recipe=name).recipe is recipe


def test_own_recipe():
    recipe = dataclasses.replace(nn.recipes.blockwise, grad_weight=None)
    assert recipe.name == "custom"
    assert "grad_weight=None" in str(recipe)
    assert hash(recipe) != hash(nn.recipes.blockwise)


def expect_apart(layer, x):
    """Tokens, and their gradients, one by one and in another order."""
    x = x.requires_grad_()
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    backwards = torch.arange(len(x)).flip(0)
    for tokens in (*backwards[:3, None], backwards):
        some = x[tokens].detach().requires_grad_()
        result = layer(some)
        assert torch.equal(result, y[tokens])
        (gradient,) = torch.autograd.grad(result, some, torch.ones_like(result))
        assert torch.equal(gradient, dx[tokens])


LAYERS = {
    name: lambda name=name: nn.Linear(391, 140, recipe=nn.recipes.batch_invariant(name))
    for name in ("blockwise", "rowwise", "rowwise_with_gw_hp")
} | {"mlp": lambda: nn.MLP(391, 384, recipe=BLOCKWISE)}


@every(LAYERS)
def test_tokens_of_a_layer_are_apart(make):
    expect_apart(make(), random(40, 391))


def test_tokens_of_experts_are_apart():
    experts = nn.Experts(256, 128, 4, recipe=BLOCKWISE)
    weights, ids = torch.rand(40, 2), torch.randint(4, (40, 2), dtype=torch.int32)
    x = random(40, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        y = experts(x, ids, weights)
        for tokens in (slice(0, 1), slice(39, 40), slice(7, 30)):
            assert torch.equal(experts(x[tokens], ids[tokens], weights[tokens]), y[tokens])


def test_a_recipe_says_it():
    assert BLOCKWISE.batch_invariant
    assert not nn.recipes.blockwise.batch_invariant
    assert BLOCKWISE.grad_input.batch_invariant
    assert not BLOCKWISE.grad_weight.batch_invariant, "whose rows are features"
    assert BLOCKWISE.name == "custom"


def test_few_tokens_are_computed_as_many_are():
    """In a layer of an FP8 checkpoint, which else does not cast few."""
    linear = torch.nn.Linear(256, 128).to(torch.bfloat16)
    layer = nn.inference_linear(linear, "blockwise", few_tokens=16)
    x = random(40, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        assert not torch.equal(layer(x)[3:4], layer(x[3:4]))
        invariant = nn.recipes.batch_invariant("blockwise")
        layer = nn.inference_linear(linear, invariant, few_tokens=16)
        assert torch.equal(layer(x)[3:4], layer(x[3:4]))
