"""Layers whose tokens do not depend on one another: each token alone, and among others."""

import dataclasses

import octofold
import pytest

from tests.python.nn.layer_support import random

torch = pytest.importorskip("torch")

nn = octofold.nn
BLOCKWISE = nn.recipes.batch_invariant("blockwise")


@pytest.fixture
def for_all_calls():
    octofold.set_batch_invariant(True)
    yield
    octofold.set_batch_invariant(False)


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


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "rowwise_with_gw_hp"])
def test_linear(recipe):
    layer = nn.Linear(391, 140, recipe=nn.recipes.batch_invariant(recipe))
    expect_apart(layer, random(40, 391, dtype=torch.float32))


def test_mlp():
    torch.manual_seed(0)
    mlp = nn.MLP(256, 384, recipe=BLOCKWISE)
    expect_apart(mlp, random(40, 256, dtype=torch.bfloat16))


def test_experts():
    experts = nn.Experts(256, 128, 4, recipe=BLOCKWISE)
    weights, ids = torch.rand(40, 2), torch.randint(4, (40, 2), dtype=torch.int32)
    x = random(40, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        y = experts(x, ids, weights)
        for tokens in (slice(0, 1), slice(39, 40), slice(7, 30)):
            assert torch.equal(experts(x[tokens], ids[tokens], weights[tokens]), y[tokens])


def test_all_calls_of_a_process(for_all_calls):
    layer = nn.Linear(391, 140, recipe="blockwise")
    expect_apart(layer, random(40, 391, dtype=torch.float32))


def test_a_recipe_says_it():
    assert BLOCKWISE.batch_invariant
    assert not nn.recipes.blockwise.batch_invariant
    assert BLOCKWISE.grad_input.batch_invariant
    assert not BLOCKWISE.grad_weight.batch_invariant, "whose rows are features"
    assert BLOCKWISE.name == "custom"


def test_few_tokens_are_computed_as_many_are():
    """In a layer of an FP8 checkpoint, which else does not cast few."""
    linear = torch.nn.Linear(256, 128).to(torch.bfloat16)
    layer = nn.InferenceLinear.from_linear(linear, "blockwise")
    layer.few_tokens = 16
    x = random(40, 256, dtype=torch.bfloat16)
    assert layer._takes_as_it_is(x[:16])
    layer._recipe = nn.recipes.batch_invariant(layer.recipe)
    assert not layer._takes_as_it_is(x[:16])
    with torch.no_grad():
        assert torch.equal(layer(x)[3:4], layer(x[3:4]))


def test_tokens_that_share_a_scale_are_refused():
    with pytest.raises(octofold.InvalidArgumentError, match=r"'output\.a'.*rows.*got 'tensor'"):
        nn.recipes.batch_invariant("tensorwise")
    product = nn.Product("128x128", "128x128", batch_invariant=True)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'output\.a'.*got '128x128'"):
        nn.Recipe(output=product, grad_input=None, grad_weight=None)
    # Delayed scales are those of the steps before.
    assert nn.recipes.batch_invariant("delayed").batch_invariant
    with pytest.raises(octofold.InvalidArgumentError, match="'batch_invariant': expected True or"):
        dataclasses.replace(nn.recipes.blockwise.output, batch_invariant=1)
