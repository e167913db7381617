"""octofold.linear(): its result and gradients, against FP64 and against the casts and products that
each recipe stands for; in one call of the library each way, where that is."""

import contextlib
import dataclasses
import itertools

import octofold
import pytest
import torch
from octofold._core.torch import LIBRARY_TAKES_TENSORS
from octofold.nn.autograd import one_call

from tests.python.casting import cast_side
from tests.python.nn.layer_support import NAMES, gradients, random, relative_error

BF16, FP32 = torch.bfloat16, torch.float32

# x, weight of the output; dY, weight of the input gradient; dY, x of the weight gradient; the dtype
# of dY; powers of two.
PRODUCTS = {
    "blockwise": ("1x128", "128x128", "1x128", "128x128", "1x128", "channel", "e4m3", False),
    "rowwise": ("channel", "channel", "channel", "channel", "channel", "channel", "e4m3", True),
    "tensorwise": ("tensor", "tensor", "tensor", "tensor", "tensor", "tensor", "e5m2", False),
    "rowwise_with_gw_hp": ("channel", "channel", "channel", "tensor", None, None, "e4m3", True),
}


def case(dtype=FP32, tokens=(2, 65)):
    x, weight = random(*tokens, 300, dtype=dtype), random(200, 300, dtype=dtype)
    return x, weight, random(200, dtype=dtype), random(*tokens, 200, dtype=dtype)


@pytest.mark.parametrize("recipe", NAMES)
def test_is_what_its_recipe_says(recipe):
    """Bit by bit, of casts and products made by hand."""
    x_of_y, w_of_y, dy_of_dx, w_of_dx, dy_of_dw, x_of_dw, gradient, power_of_two = PRODUCTS[recipe]
    x, weight, bias, dy = case(tokens=(130,))

    def cast(tensor, granularity, dtype="e4m3", transpose=False):
        format = octofold.Format(dtype, granularity, rule="torchao", power_of_two=power_of_two)
        return cast_side(tensor, format, transpose)

    def product(a, b, **options):
        return octofold.gemm(a, b, out_dtype="float32", **options)

    y, dx, dw, db = gradients(lambda *t: octofold.linear(*t, recipe), x, weight, bias, dy)
    assert torch.equal(y, product(cast(x, x_of_y), cast(weight, w_of_y), bias=bias))
    dy_rows = cast(dy, dy_of_dx, gradient)
    assert torch.equal(dx, product(dy_rows, cast(weight, w_of_dx, transpose=True)))
    if dy_of_dw is None:
        assert torch.equal(dw, dy.t() @ x)
    else:
        dy_columns = cast(dy, dy_of_dw, gradient, transpose=True)
        assert torch.equal(dw, product(dy_columns, cast(x, x_of_dw, transpose=True)))
    assert torch.equal(db, octofold.ops.cast(dy, rows="1x128", columns="sums").sums)


@pytest.mark.parametrize("recipe", NAMES)
def test_only_what_needs_a_gradient(recipe, casts):
    """No casts for frozen parts."""
    x, weight, bias, dy = case()
    for needs in ("x", "weight", "bias"):
        leaves = {"x": x.clone(), "weight": weight.clone(), "bias": bias.clone()}
        leaves[needs].requires_grad_()
        casts.clear()
        y = octofold.linear(**leaves, recipe=recipe)
        forward = casts.copy()
        y.backward(dy)
        in_backward = casts[len(forward) :]
        if needs == "x":
            assert forward.count((200, 300)) == 1
            assert forward.count((2, 65, 300)) == 1
            assert in_backward == [(2, 65, 200)]
        elif needs == "weight":
            assert forward.count((200, 300)) == 1
            assert forward.count((2, 65, 300)) == 1
            assert in_backward == [] if recipe == "rowwise_with_gw_hp" else [(2, 65, 200)]
        else:
            assert len(forward) == 2
            assert in_backward == [(2, 65, 200)]


def test_x_is_not_kept():
    """Backward keeps x in FP8; in high precision it keeps x itself, without a copy."""
    x, weight, _, _ = case(BF16)
    saved = []
    weight.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        octofold.linear(x, weight)
        codes, scales, gaps = 300 * 130, 300 * 4, 2 * 256
        assert codes + scales <= sum(kept.nbytes for kept in saved) < codes + scales + gaps
        saved.clear()
        octofold.linear(x, weight, recipe="rowwise_with_gw_hp")
        assert [t.data_ptr() for t in saved] == [x.data_ptr()]


def test_torchao_computes_the_same():
    """Its recipes, emulated on the CPU."""
    training = pytest.importorskip("torchao.float8")
    from torchao.float8.config import Float8LinearConfig

    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        config = Float8LinearConfig.from_recipe_name(recipe)
        config = type(config)(**{**vars(config), "emulate": True})
        layer = torch.nn.Sequential(torch.nn.Linear(256, 192, bias=False))
        x, dy = random(64, 256), random(64, 192)
        ours = gradients(lambda *t, r=recipe: octofold.linear(*t, r), x, layer[0].weight, None, dy)
        layer = training.convert_to_float8_training(layer, config=config)
        theirs_x = x.clone().requires_grad_()
        y = layer(theirs_x)
        y.backward(dy)
        for left, right in zip(ours, (y, theirs_x.grad, layer[0].weight.grad), strict=False):
            assert relative_error(left, right.detach()) < 1e-6, recipe


IN_ONE_CALL = ("blockwise", "rowwise", "tensorwise")
LEAVES = {"x": (2, 65, 300), "weight": (200, 300)}
PRODUCT_NAMES = ("output", "grad_input", "grad_weight")
in_one_call = pytest.mark.skipif(
    not LIBRARY_TAKES_TENSORS, reason="this torch exports its tensors one by one"
)


@pytest.fixture
def calls(monkeypatch):
    """The calls of layers that were one of the library."""
    seen = []
    forward = one_call._Call.forward

    def record(self, *arguments):
        seen.append(self)
        return forward(self, *arguments)

    monkeypatch.setattr(one_call._Call, "forward", record)
    return seen


def results(leaves, dy, recipe):
    for leaf in leaves.values():
        leaf.grad = None
    y = octofold.linear(**leaves, recipe=recipe)
    if y.requires_grad:
        y.backward(dy)
    return [y.detach(), *(leaf.grad for leaf in leaves.values())]


@in_one_call
@pytest.mark.parametrize("recipe", IN_ONE_CALL)
@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)))
def test_one_call_has_the_bits_of_operations_apart(needs, recipe, calls, monkeypatch):
    leaves = {
        "x": random(2, 65, 300, dtype=torch.bfloat16),
        "weight": random(200, 300),
        "bias": random(200, dtype=torch.bfloat16),
    }
    for leaf, needed in zip(leaves.values(), needs, strict=True):
        leaf.requires_grad_(needed)
    dy = random(2, 65, 200, dtype=torch.bfloat16)
    at_once = results(leaves, dy, recipe)
    assert len(calls) == 1
    monkeypatch.setattr(one_call, "torch_is_watching", lambda: True)
    for one, expected in zip(at_once, results(leaves, dy, recipe), strict=True):
        assert (one is None) == (expected is None)
        assert one is None or torch.equal(one, expected)
    assert len(calls) < 2


@in_one_call
@pytest.mark.parametrize("recipe", NAMES)
def test_one_call_is_for_all_that_is_in_fp8(recipe, calls):
    layer = octofold.nn.Linear(300, 200, recipe=recipe)
    layer(random(5, 300).requires_grad_())
    assert len(calls) == (recipe in IN_ONE_CALL)
    with torch.no_grad():
        layer(random(5, 300))
    assert len(calls) == (recipe in IN_ONE_CALL) + 1


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("products", [*zip(PRODUCT_NAMES), PRODUCT_NAMES[1:]])
def test_products_in_high_precision_are_torchs_beside_the_call(products, is_watched):
    """The others have the bits that they have without them."""
    from torch.utils.flop_counter import FlopCounterMode

    recipe = dataclasses.replace(octofold.nn.recipes.blockwise, **dict.fromkeys(products))
    leaves = {name: random(*shape).requires_grad_() for name, shape in LEAVES.items()}
    x, weight = (leaf.detach().flatten(0, -2) for leaf in leaves.values())
    dy = random(2, 65, 200)
    expected = results(leaves, dy, "blockwise")
    with FlopCounterMode(display=False) if is_watched else contextlib.nullcontext():
        found = results(leaves, dy, recipe)
    rows = dy.flatten(0, -2)
    of_torch = x @ weight.t(), rows @ weight, rows.t() @ x
    for index, name in enumerate(PRODUCT_NAMES):
        if name in products:
            result = found[index].flatten(0, -2)
            torch.testing.assert_close(result, of_torch[index], rtol=1e-4, atol=1e-3)
        else:
            assert torch.equal(found[index], expected[index])


@in_one_call
def test_one_call_is_not_where_torch_has_to_see_it(calls):
    layer, x = octofold.nn.Linear(300, 200), random(5, 300)
    expected = layer(x)
    assert len(calls) == 1
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert torch.equal(layer(x), expected)
    assert len(calls) == 1


@in_one_call
def test_layers_of_other_sizes_are_not_mixed_up(monkeypatch):
    """Also when there is no room for more of them."""
    from octofold._ops import layer_passes

    monkeypatch.setattr(layer_passes, "_MOST", 2)
    for tokens, out in ((1, 7), (2, 7), (1, 8), (2, 8), (1, 7)):
        x, weight = random(tokens, 300), random(out, 300)
        y = octofold.linear(x, weight)
        assert y.shape == (tokens, out)
        assert len(layer_passes._FOUND) <= 2
        assert (y - x @ weight.T).norm() < 0.06 * y.norm()


@pytest.mark.parametrize("sizes", [(300, 200), (300, 64, 200)])
def test_what_is_yet_to_be_negated_has_its_sign(sizes):
    layer = (octofold.nn.Linear if len(sizes) == 2 else octofold.nn.MLP)(*sizes)
    x, dy, found = random(5, 300), random(5, 200), []
    for inputs, gradient in ((-x, -dy), (torch._neg_view(x), torch._neg_view(dy))):
        layer.zero_grad()
        y = layer(inputs)
        y.backward(gradient)
        found.append((y, next(layer.parameters()).grad.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
