"""Recipes as values: what they are made of, and what they refuse."""

import dataclasses
import pickle

import layer_support
import octofold
import pytest

torch = pytest.importorskip("torch")

nn = octofold.nn
Product, Recipe = nn.Product, nn.Recipe
FP8 = Product("tensor", "tensor")


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
        ({"output": Product("2x2", "tensor")}, "'output.a': expected one of tensor, .*'2x2'"),
        ({"grad_input": Product("tensor", None)}, "'grad_input.b': expected one of .*None"),
        (
            {"grad_weight": Product("1x128", "channel", True)},
            "'grad_weight.fast_accumulation': expected False, as 1x128 scales vary .*, got True",
        ),
        ({"output": Product("channel", "channel", 1)}, "'output.fast_accumulation': .*True or"),
        ({"input_dtype": "e3m4"}, "'input_dtype': expected one of e4m3, e5m2, got 'e3m4'"),
        ({"weight_dtype": torch.float8_e4m3fn}, "'weight_dtype': expected one of e4m3, e5m2"),
        ({"gradient_dtype": "float16"}, "'gradient_dtype': expected one of e4m3, e5m2"),
        ({"power_of_two": None}, "'power_of_two': expected True or False, got None"),
        ({"profile": "mine"}, "'profile': expected one of deepgemm, .*, got 'mine'"),
        ({"delayed": True}, "'delayed': expected a Delayed or None, got True"),
        ({"delayed": nn.Delayed(history=0)}, "'delayed.history': expected .* at least 1, got 0"),
        ({"delayed": nn.Delayed(margin=-1)}, "'delayed.margin': expected .* at least 0, got -1"),
        ({"delayed": nn.Delayed(margin=0.5)}, "'delayed.margin': expected a whole number"),
        (
            {"delayed": nn.Delayed(), "grad_input": Product("tensor", "channel")},
            "'grad_input.b': expected tensor, as scales are delayed, got 'channel'",
        ),
        ({"delayed": nn.Delayed(), "output": None}, "'output': expected a Product, as .*None"),
        ({"delayed": nn.Delayed(), "power_of_two": True}, "'power_of_two': expected False, .*True"),
    ],
)
def test_bad_fields(change, message):
    fields = {"output": FP8, "grad_input": FP8, "grad_weight": FP8}
    with pytest.raises(octofold.InvalidArgumentError, match="^Recipe: argument " + message):
        Recipe(**(fields | change))


def test_profiles_are_those_of_the_casts():
    x = torch.randn(3, 256)
    for profile in nn.recipes.PROFILES:
        octofold.quantize(x, octofold.Format(rule=profile))
    with pytest.raises(octofold.InvalidArgumentError) as caught:
        octofold.quantize(x, "mine")
    listed = str(caught.value)
    assert all(profile in listed for profile in nn.recipes.PROFILES)
