"""The cases that the functions of layers have in common: no tokens, what is not finite, autocast,
graphs of torch.compile, checkpointing."""

from functools import partial
from typing import NamedTuple

import octofold
import pytest

from tests.python.judge import assert_compiled_same, assert_same
from tests.python.nn.expert_support import operands as expert_operands
from tests.python.nn.fused_support import (
    BF16,
    FP16,
    FP32,
    differentiated,
    mlp_operands,
    norm_operands,
)
from tests.python.nn.layer_support import STATELESS, random, relative_error

torch = pytest.importorskip("torch")


def linear_operands(dtype, tokens):
    x, weight = random(*tokens, 192, dtype=dtype), random(136, 192, dtype=dtype)
    return {"x": x, "weight": weight, "bias": random(136, dtype=dtype)}


def norm_linear_operands(dtype, tokens):
    of_linear = linear_operands(dtype, tokens)
    return of_linear | norm_operands(tokens, dtype=dtype)


def norm_mlp_operands(dtype, tokens):
    return mlp_operands(dtype, tokens) | norm_operands(tokens, dtype=dtype)


def experts(recipe, topk_weights, **operands):
    """Tokens go to experts by their places."""
    ids = torch.arange(topk_weights.numel(), dtype=torch.int32).view(topk_weights.shape) % 5
    return octofold.experts(topk_ids=ids, topk_weights=topk_weights, recipe=recipe, **operands)


class Function(NamedTuple):
    call: object
    operands: object
    recipes: tuple = STATELESS


FUNCTIONS = {
    "linear": Function(octofold.linear, linear_operands),
    "norm_linear": Function(octofold.norm_linear, norm_linear_operands),
    "mlp": Function(octofold.mlp, mlp_operands),
    "mlp behind a norm": Function(partial(octofold.mlp, norm="layer"), norm_mlp_operands),
    "mlp, keep_fp8": Function(partial(octofold.mlp, keep_fp8=True), mlp_operands),
    "experts": Function(
        experts,
        lambda dtype, tokens: expert_operands(tokens, dtype, bias=True),
        ("blockwise", "rowwise", "tensorwise"),
    ),
}
CASES = [(name, recipe) for name, function in FUNCTIONS.items() for recipe in function.recipes]
every_case = pytest.mark.parametrize(("name", "recipe"), CASES)


def case(name, recipe, dtype=FP32, tokens=(2, 65)):
    """The function, its operands, and gradients by its results."""
    function = partial(FUNCTIONS[name].call, recipe=recipe)
    operands = FUNCTIONS[name].operands(dtype, tokens)
    with torch.no_grad():
        results = function(**operands)
    results = results if isinstance(results, tuple) else (results,)
    return function, operands, [torch.randn_like(y) for y in results]


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operands_of_any_strides(name):
    function, operands, dy = case(name, "blockwise")
    if name == "experts":  # whose gradient is a product of torch's with a bias
        function = partial(function, topk_weights=operands.pop("topk_weights"))

    def of_strided(**operands):
        return function(**{name: torch.stack((t, t), -1)[..., 0] for name, t in operands.items()})

    assert_same(differentiated(of_strided, operands, dy), differentiated(function, operands, dy))


@pytest.mark.parametrize(("name", "recipe"), [case for case in CASES if case[0] != "experts"])
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
    if name != "experts":
        first = grads["weight" if "linear" in name else "gate_up_weight"]
        assert not first[:, 7].isfinite().any()
        assert "mlp" not in name or not grads["down_weight"].isfinite().any()

    dy[0][3, 7] = value
    (y, *_), grads = differentiated(function, operands, dy)
    assert y.isfinite().all()
    assert not grads["x"][3].isfinite().any()
    if name != "experts":
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


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_whole(name, recipe, backend):
    torch.compiler.reset()
    function, operands, dy = case(name, recipe)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert_compiled_same(
        differentiated(compiled, operands, dy), differentiated(function, operands, dy)
    )
    with torch.no_grad():
        assert_same(compiled(**operands), function(**operands))
