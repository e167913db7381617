"""Recipes as values: what they are made of, and what they refuse; batch-invariant ones, whose
tokens do not depend on one another."""

import dataclasses
import pickle

import octofold
import pytest

from tests.python.nn.layer_support import every, exact, gradients, random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn
Product, Recipe = nn.Product, nn.Recipe
FP8 = Product("tensor", "tensor")
BLOCKWISE = nn.recipes.batch_invariant("blockwise")
ROUNDED = octofold.Format(granularity="tensor", power_of_two=True)


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


@pytest.mark.parametrize("missing", ["output", "grad_input", "grad_weight"])
def test_each_product_may_stay_in_high_precision(missing):
    recipe = dataclasses.replace(nn.recipes.blockwise, **{missing: None})
    x, weight, dy = random(130, 256), random(192, 256), random(130, 192)
    actual = gradients(lambda *t: octofold.linear(*t, recipe), x, weight, None, dy)
    expected = exact(x, weight, None, dy)
    for name, left, right in zip(
        ("output", "grad_input", "grad_weight"), actual[:3], expected[:3], strict=True
    ):
        error = relative_error(left, right)
        assert error < 1e-5 if name == missing else 0.02 < error < 0.042


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": "blockwise"}, "'output': expected a Product, or None .*, got 'blockwise'"),
        ({"grad_weight": Product("tensor", "e5m2 tensor")}, "'grad_weight.b': .* e4m3, got e5m2"),
        ({"grad_input": Product("tensor", "tensor te")}, "'grad_input.b': .* deepgemm, got te"),
        ({"grad_weight": Product(ROUNDED, "tensor")}, "'grad_weight.a': .* None, got True"),
    ],
)
def test_bad_fields(change, message):
    fields = {"output": FP8, "grad_input": FP8, "grad_weight": FP8}
    with pytest.raises(octofold.InvalidArgumentError, match="^Recipe: argument " + message):
        Recipe(**(fields | change))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("2x2", "tensor"), {}, "'a': expected at most one word of each kind .*, got '2x2'"),
        (("tensor", None), {}, "'b': expected a Format or a text, got None"),
        (
            ("1x128", "channel"),
            {"fast_accumulation": True},
            "'fast_accumulation': expected False, as 1x128 scales vary .*, got True",
        ),
        (("channel", "channel"), {"fast_accumulation": 1}, "'fast_accumulation': .*True or"),
    ],
)
def test_bad_products(arguments, options, message):
    with pytest.raises(octofold.InvalidArgumentError, match="^Product: argument " + message):
        Product(*arguments, **options)


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


def test_all_calls_of_a_process(for_all_calls):
    layer = nn.Linear(391, 140, recipe="blockwise")
    expect_apart(layer, random(40, 391))


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


def test_tokens_that_share_a_scale_are_refused():
    with pytest.raises(octofold.InvalidArgumentError, match=r"'output\.a'.*rows.*got 'tensor'"):
        nn.recipes.batch_invariant("tensorwise")
    product = nn.Product("128x128", "128x128", batch_invariant=True)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'output\.a'.*got '128x128'"):
        nn.Recipe(output=product, grad_input=None, grad_weight=None)
    with pytest.raises(octofold.InvalidArgumentError, match="'batch_invariant': expected True or"):
        dataclasses.replace(nn.recipes.blockwise.output, batch_invariant=1)
