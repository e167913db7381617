"""octofold.experts(): its result and gradients, against FP64 and against dense products of each
expert, bit for bit."""

import itertools

import octofold
import pytest
import torch
from octofold import InvalidArgumentError, ScaledTensor
from octofold.nn.recipes import Product, Recipe

from tests.python.nn.expert_support import (
    EXPERTS,
    HIDDEN,
    INNER,
    LIMIT,
    SLOTS,
    by_dense_products,
    choices,
    operands,
    truth,
)
from tests.python.nn.fused_support import CURVES, GATES, bytes_kept, differentiated, size_of, wide
from tests.python.nn.layer_support import random, relative_error

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
RECIPES = ("blockwise", "rowwise", "tensorwise")
LINES, SQUARE = "1x128 torchao", "128x128 torchao"
BY_SQUARES = Product(LINES, SQUARE)
FINE, SQUARES = (
    Recipe(output=BY_SQUARES, grad_input=BY_SQUARES, grad_weight=Product(LINES, unit))
    for unit in (LINES, SQUARE)
)


def run(ids, recipe="blockwise", name="swiglu"):
    """octofold.experts() of these ids as a function of operands."""

    def function(x, topk_weights, w13, w2, b13=None, b2=None):
        return octofold.experts(x, ids, topk_weights, w13, w2, name, recipe, b13, b2)

    return function


def assert_near(ids, given, dy, limit=LIMIT, name="swiglu", **options):
    (y,), grads = differentiated(run(ids, name=name, **options), given, [dy])
    (expected_y,), expected = differentiated(truth(ids, name), wide(given), [dy.double()])
    assert y.dtype == given["x"].dtype
    assert relative_error(y, expected_y) < limit
    assert grads.keys() == expected.keys()
    for key, gradient in grads.items():
        assert gradient.dtype == given[key].dtype
        assert gradient.shape == given[key].shape
        assert relative_error(gradient, expected[key]) < limit, key
    return grads


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("recipe", [*RECIPES, FINE, SQUARES])
def test_gradients_against_float64(recipe, dtype):
    given, ids, dy = operands(dtype=dtype), choices(), random(70, HIDDEN, dtype=dtype)
    limit = 0.13 if recipe == "tensorwise" else LIMIT  # whose gradients are e5m2
    grads = assert_near(ids, given, dy, limit, recipe=recipe)
    assert not grads["w13"][0].any()  # no token's expert
    assert not grads["w2"][0].any()
    assert not grads["topk_weights"][ids < 0].any()


@pytest.mark.parametrize("name", [*GATES, *CURVES])
def test_activations_and_biases(name):
    given = operands(bias=True, gated=name in GATES)
    assert_near(choices(), given, random(70, HIDDEN), name=name)


@pytest.mark.parametrize("recipe", [FINE, SQUARES])
@pytest.mark.parametrize(("inner", "tokens"), [(128, 400), (192, 70), (INNER, 1)])
def test_bits_of_dense_products(recipe, inner, tokens):
    """Bits are those of dense products if no scale is shared by several experts. Only the sums of
    the routing weights' gradients may be rounded otherwise."""
    given = operands((tokens,), BF16, inner=inner)
    ids, dy = choices((tokens,)), random(tokens, HIDDEN, dtype=BF16)
    (y,), grads = differentiated(run(ids, recipe), given, [dy])
    (expected_y,), expected = by_dense_products(ids, **given, dy=dy, recipe=recipe)
    assert torch.equal(y, expected_y)
    of_weights = "topk_weights"
    assert torch.allclose(grads.pop(of_weights), expected.pop(of_weights), rtol=1e-5, atol=1e-5)
    for key, gradient in expected.items():
        assert torch.equal(grads[key], gradient), key


def test_everything_goes_nowhere():
    ids = torch.full((70, SLOTS), -1, dtype=torch.int32)
    (y,), grads = differentiated(run(ids), operands(bias=True), [random(70, HIDDEN)])
    assert not y.any()
    assert not any(gradient.any() for gradient in grads.values())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
def test_weights_that_are_nothing(recipe, dtype):
    """Their gradients are as exact as those of others; other gradients have none of such rows."""
    given, ids = operands(dtype=dtype, bias=True), choices(gone=0)
    small = torch.tensor([0.0, 1e-30, -1.0])
    given["topk_weights"] = small.expand(70, SLOTS).clone()
    dy = random(70, HIDDEN, dtype=dtype)
    _, grads = differentiated(run(ids, recipe), given, [dy])
    _, expected = differentiated(truth(ids), wide(given), [dy.double()])
    limit = 0.13 if recipe == "tensorwise" else LIMIT
    for slot in range(SLOTS):
        actual, wanted = (g["topk_weights"][:, slot] for g in (grads, expected))
        assert relative_error(actual, wanted) < limit, slot
    for name in ("x", "w13", "w2", "b13", "b2"):
        assert relative_error(grads[name], expected[name]) < 2 * limit, name


def test_one_token_and_one_expert():
    # A single sum, of 256 products that take each other away, is less accurate than many.
    assert_near(torch.tensor([[2]]), operands((1,), slots=1), random(1, HIDDEN), 0.3)
    given = operands((33,), experts=1, slots=1)
    assert_near(torch.zeros((33, 1), dtype=torch.int64), given, random(33, HIDDEN))


def test_an_expert_twice():
    """An expert may be chosen twice by a token: both slots count."""
    ids = choices()
    ids[:, 1] = ids[:, 0]
    assert_near(ids, operands(bias=True), random(70, HIDDEN))


@pytest.mark.parametrize(
    ("recipe", "granularity", "inner"),
    [("blockwise", "128x128", INNER), ("blockwise", "128x128", 128), ("rowwise", "channel", INNER)],
)
def test_fp8_weights(recipe, granularity, inner):
    """Weights in FP8 are taken as they are: results have the bits of the weights whose casts they
    are. A gradient by x goes through them; with squares of the same bits. Where the rows of an
    expert are a multiple of 128, scales are as a cast of all experts gives them, too."""
    given, ids = operands(dtype=BF16, inner=inner), choices()
    dy = random(70, HIDDEN, dtype=BF16)
    (expected_y,), expected = differentiated(run(ids, recipe), given, [dy])
    power_of_two = recipe == "rowwise"
    format = octofold.Format("e4m3", granularity, rule="torchao", power_of_two=power_of_two)
    frozen = {}
    for name in ("w13", "w2"):
        each = [octofold.quantize(weight, format) for weight in given[name]]
        data, scale = (torch.stack([getattr(c, key) for c in each]) for key in ("data", "scale"))
        frozen[name] = ScaledTensor(data, scale, granularity)
        if inner == 128:
            frozen[name] = octofold.quantize(given[name], format)
            assert frozen[name].scale.dim() == 2
    with torch.no_grad():
        assert torch.equal(run(ids, recipe)(**given | frozen), expected_y)
    (y,), grads = differentiated(run(ids, recipe), given | frozen, [dy])
    assert torch.equal(y, expected_y)
    assert torch.equal(grads["topk_weights"], expected["topk_weights"])
    if granularity == "128x128":
        assert torch.equal(grads["x"], expected["x"])
    else:
        assert relative_error(grads["x"], expected["x"]) < LIMIT


def test_what_is_kept_for_backward():
    """FP8 of x's rows and of the activation, transposed; gate and up; FP8 of the weights,
    transposed. Not what the experts give."""
    tokens, experts = 256, 2
    given = operands((tokens,), BF16, experts=experts, slots=2)
    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
    ids = choices((tokens,), experts, 2, gone=0, empty=0)
    rows, columns = 2 * tokens, 2 * tokens + 128 * experts

    def kept(*names):
        chosen = {name: leaves[name] if name in names else given[name] for name in given}
        return size_of(bytes_kept(lambda: run(ids)(**chosen)))

    routing = 4 * (3 * rows + experts + 1)  # offsets, sources, positions and weights
    gate_up, of_x, of_h = 2 * rows * 2 * INNER, HIDDEN * columns, INNER * columns
    of_weights = INNER * HIDDEN * experts
    for names, expected in (
        (given, of_x + of_h + gate_up + 3 * of_weights),
        (["topk_weights"], gate_up + of_weights),
        (["x"], gate_up + 3 * of_weights),
        (["w2"], of_h),
    ):
        assert routing + expected <= kept(*names) < 1.05 * (routing + expected), names


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        *itertools.product((torch.int32, torch.int64), (EXPERTS, -2, 2**31 - 1, -(2**31))),
        (torch.int64, 2**32 + 1),  # does not wrap
    ],
)
def test_ids_out_of_range(wrong, dtype):
    ids = choices().to(dtype)
    given = operands()
    assert torch.equal(run(ids)(**given), run(ids.int())(**given))
    ids[3, 1] = wrong
    with pytest.raises(InvalidArgumentError, match="experts: argument 'topk_ids'"):
        run(ids)(**given)
