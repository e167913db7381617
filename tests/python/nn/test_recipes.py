"""Recipes as values: what they are made of, and what they refuse."""

import dataclasses
import pickle

import octofold
import pytest

from tests.python.nn import layer_support

torch = pytest.importorskip("torch")

nn = octofold.nn
Product, Recipe = nn.Product, nn.Recipe
FP8 = Product("tensor", "tensor")
ROUNDED = octofold.Format(granularity="tensor", power_of_two=True)


def test_names():
    assert tuple(nn.recipes.NAMED) == tuple(
        sorted(layer_support.NAMES, key=list(nn.recipes.NAMED).index)
    )
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
    x, weight = torch.randn(130, 256), torch.randn(192, 256)
    leaf = weight.clone().requires_grad_()
    dy = torch.randn(130, 192)
    octofold.linear(x, leaf, recipe=recipe).backward(dy)
    assert torch.equal(leaf.grad, dy.t() @ x)


@pytest.mark.parametrize("missing", ["output", "grad_input", "grad_weight"])
def test_each_product_may_stay_in_high_precision(missing):
    recipe = dataclasses.replace(nn.recipes.blockwise, **{missing: None})
    x, weight, dy = torch.randn(130, 256), torch.randn(192, 256), torch.randn(130, 192)
    actual = layer_support.gradients(lambda *t: octofold.linear(*t, recipe), x, weight, None, dy)
    expected = layer_support.exact(x, weight, None, dy)
    for name, left, right in zip(
        ("output", "grad_input", "grad_weight"), actual[:3], expected[:3], strict=True
    ):
        error = layer_support.relative_error(left, right)
        assert error < 1e-5 if name == missing else 0.02 < error < 0.042


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": "blockwise"}, "'output': expected a Product, or None .*, got 'blockwise'"),
        ({"delayed": True}, "'delayed': expected a Delayed or None, got True"),
        ({"delayed": nn.Delayed(history=0)}, "'delayed.history': expected .* at least 1, got 0"),
        ({"delayed": nn.Delayed(margin=-1)}, "'delayed.margin': expected .* at least 0, got -1"),
        ({"delayed": nn.Delayed(margin=0.5)}, "'delayed.margin': expected a whole number"),
        (
            {"delayed": nn.Delayed(), "grad_input": Product("tensor", "channel")},
            "'grad_input.b': expected tensor, as scales are delayed, got 'channel'",
        ),
        ({"delayed": nn.Delayed(), "output": None}, "'output': expected a Product, as .*None"),
        (
            {"delayed": nn.Delayed(), "output": Product(ROUNDED, ROUNDED)},
            "'output.a': expected power_of_two=False, as delayed scales .*, got True",
        ),
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
        (("1x128", "channel"), {"two_level": True}, "'two_level': expected False, as .* channel"),
    ],
)
def test_bad_products(arguments, options, message):
    with pytest.raises(octofold.InvalidArgumentError, match="^Product: argument " + message):
        Product(*arguments, **options)
