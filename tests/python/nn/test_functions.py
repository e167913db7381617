"""The cases that the functions of layers have in common: no tokens, what is not finite, autocast,
what has a gradient, shapes, strides, dtypes."""

from functools import cache, partial
from typing import NamedTuple

import octofold
import pytest
import torch

from tests.python.judge import assert_same
from tests.python.nn.expert_support import EXPERTS, truth
from tests.python.nn.expert_support import operands as expert_operands
from tests.python.nn.fused_support import (
    BF16,
    FP16,
    FP32,
    differentiated,
    exact_linear,
    exact_mlp,
    exact_norm_linear,
    mlp_operands,
    norm_operands,
    wide,
)
from tests.python.nn.layer_support import NAMES, random, relative_error


def linear_operands(dtype, tokens):
    x, weight = random(*tokens, 192, dtype=dtype), random(136, 192, dtype=dtype)
    return {"x": x, "weight": weight, "bias": random(136, dtype=dtype)}


def norm_linear_operands(dtype, tokens):
    of_linear = linear_operands(dtype, tokens)
    return of_linear | norm_operands(tokens, dtype=dtype)


def norm_mlp_operands(dtype, tokens):
    return mlp_operands(dtype, tokens) | norm_operands(tokens, dtype=dtype)


def ids_of(topk_weights):
    """Tokens go to experts by their places."""
    places = torch.arange(topk_weights.numel(), dtype=torch.int32)
    return places.view(topk_weights.shape) % EXPERTS


def experts(topk_weights, **options):
    return octofold.experts(topk_ids=ids_of(topk_weights), topk_weights=topk_weights, **options)


def exact_experts(topk_weights, **operands):
    return truth(ids_of(topk_weights))(topk_weights=topk_weights, **operands)


GRANULARITIES = {"blockwise": "128x128", "rowwise": "channel", "tensorwise": "tensor"}


def fp8_expert_operands(dtype, tokens):
    given = expert_operands(tokens, dtype, bias=True)
    return {name: given[name] for name in ("x", "topk_weights", "b13", "b2")}


@cache
def frozen_weights():
    given = expert_operands((1,))
    return {name: given[name] for name in ("w13", "w2")}


def fp8_experts(recipe="blockwise", **operands):
    """With weights in FP8, and activations in 16 bits."""
    granularity = GRANULARITIES.get(recipe, "128x128")
    weights = {
        name: octofold.quantize(weight, granularity, matrices=EXPERTS)
        for name, weight in frozen_weights().items()
    }
    return experts(**weights, **operands, recipe=recipe, compute="weight-only")


class Function(NamedTuple):
    call: object
    operands: object
    exact: object
    """The same by torch's operations."""
    recipes: tuple = NAMES


FUNCTIONS = {
    "linear": Function(octofold.linear, linear_operands, exact_linear),
    "norm_linear": Function(octofold.norm_linear, norm_linear_operands, exact_norm_linear("rms")),
    "mlp": Function(octofold.mlp, mlp_operands, exact_mlp()),
    "mlp behind a norm": Function(
        partial(octofold.mlp, norm="layer"), norm_mlp_operands, exact_mlp(kind="layer")
    ),
    "mlp, keep_fp8": Function(partial(octofold.mlp, keep_fp8=True), mlp_operands, exact_mlp()),
    "experts": Function(
        experts,
        lambda dtype, tokens: expert_operands(tokens, dtype, bias=True),
        exact_experts,
        tuple(GRANULARITIES),
    ),
    "experts, weight-only": Function(
        fp8_experts,
        fp8_expert_operands,
        lambda **o: exact_experts(**o, **wide(frozen_weights())),
        tuple(GRANULARITIES),
    ),
}
CASES = [(name, recipe) for name, function in FUNCTIONS.items() for recipe in function.recipes]
every_case = pytest.mark.parametrize(("name", "recipe"), CASES)


def case(name, recipe, dtype=FP32, tokens=(2, 65)):
    """The function, its operands, and gradients by its results."""
    function = partial(FUNCTIONS[name].call, recipe=recipe)
    operands = FUNCTIONS[name].operands(dtype, tokens)
    return function, operands, [torch.randn_like(y) for y in results_of(function, operands)]


def results_of(function, operands):
    with torch.no_grad():
        results = function(**operands)
    return results if isinstance(results, tuple) else (results,)


@every_case
@pytest.mark.parametrize("tokens", [(0,), (3, 0)])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_no_tokens(name, recipe, tokens, dtype):
    function, operands, dy = case(name, recipe, dtype, tokens)
    results, grads = differentiated(function, operands, dy)
    for y in results:
        assert y.shape == (*tokens, y.shape[-1])
    for argument, gradient in grads.items():
        assert gradient.shape == operands[argument].shape
        assert not gradient.any()


@every_case
def test_without_gradients_the_same(name, recipe):
    function, operands, dy = case(name, recipe, BF16)
    results, _ = differentiated(function, operands, dy)
    assert_same(results_of(function, operands), results)
    if recipe == "blockwise":
        assert_same(results_of(FUNCTIONS[name].call, operands), results)  # which is the default


@every_case
@pytest.mark.parametrize("alone", [False, True])
def test_what_needs_no_gradient(name, recipe, alone):
    """Others' gradients have the same bits without it; it alone too, but for sums of biases, and
    where torch multiplies what else is never written in high precision."""
    function, operands, dy = case(name, recipe, BF16)
    _, expected = differentiated(function, operands, dy)
    for one in operands:
        leaves = {n: t.clone().requires_grad_((n == one) == alone) for n, t in operands.items()}
        results = function(**leaves)
        results = [results] if isinstance(results, torch.Tensor) else results
        pairs = [pair for pair in zip(results, dy, strict=True) if pair[0].requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True))
        for argument, leaf in leaves.items():
            if not leaf.requires_grad:
                assert leaf.grad is None
            elif "bias" in argument or ("mlp" in name and recipe == "rowwise_with_gw_hp"):
                assert relative_error(leaf.grad, expected[argument]) < 2**-5
            else:
                assert torch.equal(leaf.grad, expected[argument]), (one, argument)


def rows_apart(tensor):
    """No one stride walks them."""
    wide = torch.full((6, 40, tensor.shape[-1]), torch.nan, dtype=tensor.dtype)
    wide[:, :20] = tensor
    return wide[:, :20]


PER_TOKEN = ("x", "residual", "topk_weights")
CHANGES = {
    "flat": lambda t: t.flatten(0, 1),
    "more dimensions": lambda t: t.view(2, 3, *t.shape[1:]),
    "rows apart": rows_apart,
    "columns": lambda t: t.flatten(0, 1).t().contiguous().t(),
    "elements apart": lambda t: torch.stack((t, t), -1)[..., 0],
    "one token": lambda t: t[0, 0],
}


@pytest.mark.parametrize(
    ("name", "recipe"), [case for case in CASES if "blockwise" in case or "linear" in case]
)
@pytest.mark.parametrize("change", CHANGES)
def test_shapes_and_strides(name, recipe, change):
    function, operands, dy = case(name, recipe, BF16, (1, 1) if change == "one token" else (6, 20))
    names = operands if change == "elements apart" else PER_TOKEN
    changed = CHANGES[change]

    def of_changed(**operands):
        return function(**{n: changed(t) if n in names else t for n, t in operands.items()})

    expected, expected_grads = differentiated(function, operands, dy)
    results, grads = differentiated(of_changed, operands, [changed(g) for g in dy])
    for left, right in zip(results, expected, strict=True):
        assert torch.equal(left, changed(right))
    assert_same(grads, expected_grads)


@every_case
def test_gradients_that_are_one_number(name, recipe):
    function, operands, dy = case(name, recipe)
    expanded = [torch.ones(()).expand_as(g) for g in dy]
    expected = differentiated(function, operands, [g.contiguous() for g in expanded])
    assert_same(differentiated(function, operands, expanded), expected)


@every_case
@pytest.mark.parametrize(
    "dtypes", [(BF16, FP32), (FP16, BF16), (FP32, FP16), (FP16, FP16)], ids=str
)
def test_dtypes(name, recipe, dtypes):
    """Results have that of x, gradients that of what they are of."""
    function, operands, dy = case(name, recipe)
    of_tokens, of_parameters = dtypes
    operands = {
        n: t.to(of_tokens if n in PER_TOKEN else of_parameters) for n, t in operands.items()
    }
    results, grads = differentiated(function, operands, dy)
    assert {y.dtype for y in results} == {of_tokens}
    expected = differentiated(FUNCTIONS[name].exact, wide(operands), [g.double() for g in dy])
    for left, right in zip(results, expected[0], strict=True):
        assert relative_error(left, right) < 0.08
    for argument, gradient in grads.items():
        assert gradient.dtype == operands[argument].dtype
        assert relative_error(gradient, expected[1][argument]) < 0.13, argument
        of_product = recipe != "rowwise_with_gw_hp" and argument[0] != "b"
        if of_product and dtypes == (BF16, FP32) and argument not in PER_TOKEN:
            assert not torch.equal(gradient, gradient.bfloat16().float()), "rounded on the way"


@pytest.mark.parametrize(("name", "recipe"), [case for case in CASES if "experts" not in case[0]])
def test_gradient_of_a_narrow_bias_alone_is_rounded_once(name, recipe):
    function, operands, (dy, *_) = case(name, recipe)
    dy[1] = 0.01 * torch.randn_like(dy[0]) - dy[0]  # sums that are small beside what is summed
    last = "bias" if "linear" in name else "down_bias"
    bias = operands[last].bfloat16().requires_grad_()
    y = function(**operands | {last: bias})
    y = y[0] if isinstance(y, tuple) else y
    (db,) = torch.autograd.grad(y, bias, dy)
    torch.testing.assert_close(db, dy.double().sum((0, 1)).bfloat16(), rtol=2**-7, atol=1e-5)


@every_case
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_propagates(name, recipe, value):
    function, operands, dy = case(name, recipe, tokens=(130,))
    bad = operands["x"].clone()
    bad[3, 7] = value
    (y, *_), grads = differentiated(function, operands | {"x": bad}, dy)
    assert not y[3].isfinite().any()
    if recipe != "tensorwise":
        assert y[torch.arange(130) != 3].isfinite().all()
    if name == "linear":
        assert grads["x"].isfinite().all()
    if "experts" not in name:
        first = grads["weight" if "linear" in name else "gate_up_weight"]
        assert not first[:, 7].isfinite().any()
        assert "mlp" not in name or not grads["down_weight"].isfinite().any()

    dy[0][3, 7] = value
    (y, *_), grads = differentiated(function, operands, dy)
    assert y.isfinite().all()
    assert not grads["x"][3].isfinite().any()
    if "experts" not in name:
        last = "" if "linear" in name else "down_"
        assert not grads[f"{last}weight"][7].isfinite().any()
        assert not grads[f"{last}bias"][7].isfinite()
        assert not grads.get("gate_up_weight", torch.tensor(torch.nan)).isfinite().any()
        assert not grads.get("norm_weight", torch.tensor(torch.nan)).isfinite().any()


@every_case
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_autocast(name, recipe, dtype):
    """x is cast from what it is; the result has autocast's dtype, a sum and gradients their own."""
    function, operands, dy = case(name, recipe)
    expected, expected_grads = differentiated(function, operands, dy)
    with torch.autocast("cpu", dtype):
        (y, *totals), grads = differentiated(function, operands, dy)
    assert y.dtype == dtype
    assert relative_error(y, expected[0]) < 2**-5
    assert_same(totals, expected[1:])
    for argument, gradient in grads.items():
        assert gradient.dtype == FP32
        assert relative_error(gradient, expected_grads[argument]) < 0.11, argument


def test_unknown_names():
    with pytest.raises(AttributeError, match="'octofold' has no attribute 'liner'"):
        octofold.liner  # noqa: B018
