"""octofold.jax.linear: its result and gradients against a layer of JAX in FP32, and bit by bit
against the casts and products of which its recipe consists."""

import functools

import numpy as np
import octofold
import pytest
from octofold import Format, UnsupportedError
from octofold.jax import Product, Recipe, linear

from tests.python.jax_support import jax, random, to_jax
from tests.python.judge import relative_error

RECIPES = ("blockwise", "rowwise", "rowwise_with_gw_hp", "tensorwise")
SQUARE = Product("128x128", "128x128")

# Two operands rounded to 3 bits of mantissa (e4m3), and one of them to 2 (e5m2): 0.037 and 0.058
# for normally distributed values; and no cast at all.
LIMITS = {"e4m3": 0.042, "e5m2": 0.065, "high": 1e-5}
OF_GRADIENTS = dict.fromkeys(RECIPES, "e4m3") | {"tensorwise": "e5m2"}


def exact(x, weight, bias):
    return x @ weight.T + bias


def case(rng, tokens=(2, 65), dtype="float32"):
    shapes = (*tokens, 300), (200, 300), (200,), (*tokens, 200)
    return to_jax(tuple(random(rng, *shape, dtype=dtype) for shape in shapes))


def gradients(layer, x, weight, bias, dy):
    """The result, and the gradients by x, weight and bias."""

    def program(x, weight, bias, dy):
        y, back = jax.vjp(layer, x, weight, bias)
        return y, *back(dy)

    return jax.jit(program)(x, weight, bias, dy)


on_each_device = pytest.mark.usefixtures("programs_there")


@on_each_device
@pytest.mark.parametrize("recipe", RECIPES)
def test_against_float32(recipe, rng):
    arguments = case(rng)
    actual = gradients(functools.partial(linear, recipe=recipe), *arguments)
    expected = gradients(exact, *arguments)
    kinds = ["e4m3", OF_GRADIENTS[recipe], OF_GRADIENTS[recipe], "high"]
    if recipe == "rowwise_with_gw_hp":
        kinds[2] = "high"
    for kind, left, right in zip(kinds, actual, expected, strict=True):
        assert left.shape == right.shape
        error = relative_error(left, right)
        assert error < LIMITS[kind]
        assert kind == "high" or error > LIMITS[kind] / 2, "it was not cast"


def test_is_what_its_recipe_says(rng):
    """The results are those of the recipe's casts and products of NumPy's arrays."""
    x, weight, bias, dy = case(rng, (130,))
    y, dx, dweight, dbias = gradients(linear, x, weight, bias, dy)
    x, weight, bias, dy = map(np.asarray, (x, weight, bias, dy))

    def cast(array, rows, transposed, columns=None):
        formats = (Format(granularity=name, rule="torchao") for name in (rows, transposed))
        return octofold.ops.cast(
            array, **dict(zip(("rows", "transposed"), formats, strict=True)), columns=columns
        )

    x8, w8 = cast(x, "1x128", "channel"), cast(weight, "128x128", "128x128")
    dy8 = cast(dy, "1x128", "1x128", "sums")
    gemm = functools.partial(octofold.gemm, out_dtype="float32")
    np.testing.assert_array_equal(y, gemm(x8.rows, w8.rows, bias=bias))
    np.testing.assert_array_equal(dx, gemm(dy8.rows, w8.transposed))
    np.testing.assert_array_equal(dweight, gemm(dy8.transposed, x8.transposed))
    np.testing.assert_array_equal(dbias, dy8.sums)


@on_each_device
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype, recipe, rng):
    """The result has x's dtype, whatever those of weight and bias; gradients their arguments'."""
    x, weight, bias, dy = case(rng)
    dtypes = dtype, "bfloat16", "float16"
    arguments = [a.astype(t) for a, t in zip((x, weight, bias), dtypes, strict=True)]
    layer = functools.partial(linear, recipe=recipe)
    results = gradients(layer, *arguments, dy.astype(dtype))
    assert [str(result.dtype) for result in results] == [dtype, *dtypes]
    for left, right in zip(results, gradients(exact, x, weight, bias, dy), strict=True):
        assert relative_error(left, right) < LIMITS["e5m2"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tokens", [(0,), (1,), (3, 0), ()], ids=str)
def test_few_tokens(tokens, recipe, rng):
    arguments = case(rng, tokens)
    actual = gradients(functools.partial(linear, recipe=recipe), *arguments)
    for left, right in zip(actual, gradients(exact, *arguments), strict=True):
        assert left.shape == right.shape
        assert not right.any() or relative_error(left, right) < 0.1


def custom_calls(program, *arguments):
    """How often a compiled program calls each operation."""
    text = jax.jit(program).lower(*arguments).compile().as_text()
    targets = [
        line.split('custom_call_target="octofold.')[1]
        for line in text.splitlines()
        if 'custom_call_target="octofold.' in line
    ]
    names = [target.split(".")[0] for target in targets]
    return {name: names.count(name) for name in names}


def test_each_operand_is_cast_once(rng):
    x, weight, bias, _ = case(rng, (130,))

    def loss(x, weight, bias):
        return (linear(x, weight, bias) ** 2).sum()

    assert custom_calls(loss, x, weight, bias) == {"cast": 2, "gemm": 1}
    calls = custom_calls(jax.grad(loss, (0, 1, 2)), x, weight, bias)
    assert calls == {"cast": 3, "gemm": 3}


def test_what_needs_no_gradient_costs_nothing(rng):
    x, weight, bias, _ = case(rng, (130,))

    def loss(x, weight, bias):
        return (linear(x, weight, bias) ** 2).sum()

    for argument in (0, 1):
        calls = custom_calls(jax.grad(loss, argument), x, weight, bias)
        assert calls == {"cast": 3, "gemm": 2}
    assert custom_calls(jax.grad(loss, 2), x, weight, bias) == {"cast": 2, "gemm": 1}
    kept = jax.eval_shape(lambda *a: jax.vjp(lambda x: linear(x, *a[1:]), a[0])[1], x, weight, bias)
    codes = [leaf.shape for leaf in jax.tree.leaves(kept) if leaf.dtype == jax.numpy.float8_e4m3fn]
    assert codes == [(300, 200)]


WRAPPED = {
    "as it is": lambda layer: layer,
    "checkpoint": jax.checkpoint,
    "cond": lambda layer: lambda x, w: jax.lax.cond(x[0, 0] > 0, layer, layer, x, w),
    "scan": lambda layer: (
        lambda x, w: jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, w[None])[0]
    ),
}


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise_with_gw_hp"])
@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_differentiated_changes(name, recipe, rng):
    """From layer to layer and from call to call, where all sizes are the same."""
    x, *weights = to_jax((random(rng, 128, 128), *(random(rng, 128, 128) / 11 for _ in range(2))))

    def loss(layer, x, weights):
        for weight in weights:
            x = jax.nn.gelu(layer(x, weight))
        return (x**2).sum()

    layer = WRAPPED[name](functools.partial(linear, recipe=recipe))
    for arguments in (0, 1, (0, 1)):
        found = jax.grad(functools.partial(loss, layer), arguments)(x, weights)
        wanted = jax.grad(functools.partial(loss, lambda x, w: x @ w.T), arguments)(x, weights)
        for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert relative_error(left, right) < 0.2


def test_recipes_of_ones_own(rng):
    arguments = case(rng)
    expected = gradients(exact, *arguments)
    high = Recipe(output=None, grad_input=None, grad_weight=None)
    for left, right in zip(
        gradients(functools.partial(linear, recipe=high), *arguments), expected, strict=True
    ):
        assert relative_error(left, right) < LIMITS["high"]
    forward = Recipe(output=SQUARE, grad_input=None, grad_weight=SQUARE)
    y, dx, dweight, _ = gradients(functools.partial(linear, recipe=forward), *arguments)
    assert relative_error(dx, expected[1]) < LIMITS["high"]
    assert LIMITS["e4m3"] > relative_error(y, expected[0]) > LIMITS["e4m3"] / 2
    assert LIMITS["e4m3"] > relative_error(dweight, expected[2]) > LIMITS["e4m3"] / 2


def test_without_bias_or_what_loses_it(rng):
    x, weight, _, dy = case(rng)
    y, back = jax.vjp(linear, x, weight)
    assert [gradient.shape for gradient in back(dy)] == [x.shape, weight.shape]
    assert y.shape == dy.shape
    assert not jax.grad(lambda x: 0 * linear(x, weight).sum())(x).any()


def test_gradients_of_gradients_are_refused(rng):
    x, weight, *_ = case(rng, (4,))
    with pytest.raises(UnsupportedError, match="has no gradient"):
        jax.grad(lambda x: jax.grad(lambda x: (linear(x, weight) ** 2).sum())(x).sum())(x)
