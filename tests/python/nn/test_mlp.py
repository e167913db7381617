"""MLPs as one, as a function and as a module: against FP64, and what they keep between forward and
backward (gate and up in FP8, if asked to)."""

import copy

import octofold
import pytest
import torch

from tests.python.nn.fused_support import (
    BF16,
    CURVES,
    FP32,
    GATES,
    HIDDEN,
    IN,
    OUT,
    bytes_kept,
    differentiated,
    exact_mlp,
    mlp_operands,
    size_of,
    wide,
)
from tests.python.nn.layer_support import NAMES, random, relative_error, step

nn = octofold.nn
ACTIVATIONS = (*GATES, *CURVES)


def case(dtype=FP32, tokens=(2, 65), **options):
    return mlp_operands(dtype, tokens, **options), [random(*tokens, OUT, dtype=dtype)]


def fused(recipe="blockwise", name="swiglu", **options):
    def function(**operands):
        return octofold.mlp(**operands, activation=name, recipe=recipe, **options)

    return function


def errors(actual, expected):
    return {name: relative_error(grad, expected[name]) for name, grad in actual.items()}


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("recipe", NAMES)
def test_gradients_against_float64(recipe, biases):
    """Each product adds an error of 0.037 of its operands (0.058 with gradients in e5m2): three go
    into dx and the first weight's gradient, two into the second's. Biases have none, and make that
    of what goes through them smaller. Where gate and up are kept in FP8, another cast, of 0.026 of
    them, adds to what goes through the activation, and nothing else changes but the second weight's
    gradient in high precision, for which the activation is worked out from what is kept."""
    operands, dy = case(biases=biases)
    results, grads = differentiated(fused(recipe), operands, dy)
    expected, expected_grads = differentiated(exact_mlp(), wide(operands), [dy[0].double()])
    assert 0.02 < relative_error(results[0], expected[0]) < (0.055 if biases else 0.075)
    found = errors(grads, expected_grads)
    two, three = (0.09, 0.11) if recipe == "tensorwise" else (0.075, 0.075)
    limits = {"x": three, "gate_up_weight": three, "gate_up_bias": two, "down_weight": two}
    for name, limit in limits.items():
        assert name not in found or 0.3 * limit < found[name] < limit, name
    assert found.get("down_bias", 0) < 1e-5

    of_kept, grads_of_kept = differentiated(fused(recipe, keep_fp8=True), operands, dy)
    assert torch.equal(of_kept[0], results[0])
    errors_of_kept = errors(grads_of_kept, expected_grads)
    for name in ("x", "gate_up_weight", "gate_up_bias"):
        if name in found:
            assert found[name] < errors_of_kept[name] < (found[name] ** 2 + 0.04**2) ** 0.5, name
    if recipe == "rowwise_with_gw_hp":
        assert errors_of_kept["down_weight"] < 0.075
    else:
        assert torch.equal(grads_of_kept["down_weight"], grads["down_weight"])


@pytest.mark.parametrize("keep_fp8", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_a_module(name, keep_fp8):
    module = nn.MLP(IN, HIDDEN, OUT, True, name, keep_fp8=keep_fp8)
    first = module.gate_up_proj if name in GATES else module.up_proj
    down, x, dy = module.down_proj, random(130, IN), random(130, OUT)
    operands = {"x": x, "gate_up_weight": first.weight, "down_weight": down.weight}
    operands |= {"gate_up_bias": first.bias, "down_bias": down.bias}
    y, dx, *_ = step(module, x, dy=dy)
    (expected,), expected_grads = differentiated(exact_mlp(name), wide(operands), [dy.double()])
    assert relative_error(y, expected) < 0.06
    grads = {name: operand.grad for name, operand in operands.items()} | {"x": dx}
    assert max(errors(grads, expected_grads).values()) < 0.1
    assert nn.MLP(IN, HIDDEN)(x).shape == (130, IN)
    assert str(module).count(name) == 1
    assert ("keep_fp8=True" in str(module)) == keep_fp8
    assert "keep_fp8=True" in str(nn.MLP.from_linears(*linears(), keep_fp8=True))


@pytest.mark.parametrize("keep_fp8", [False, True])
@pytest.mark.parametrize("recipe", NAMES)
def test_bytes_kept(recipe, keep_fp8):
    """gate and up in BF16 or FP8, x and the activation in FP8, or x itself; and the weights'
    transposes."""
    operands, _ = case(BF16, tokens=(520,), biases=False)
    for operand in operands.values():
        if operand is not None:
            operand.requires_grad_()
    kept = bytes_kept(lambda: fused(recipe, keep_fp8=keep_fp8)(**operands))
    of_token = 2 * HIDDEN * (1 if keep_fp8 else 2)
    of_token += 2 * IN if recipe == "rowwise_with_gw_hp" else IN + HIDDEN
    expected = 520 * of_token + HIDDEN * (2 * IN + OUT)
    bytes_of_scales = 0.05 * expected
    assert expected <= size_of(kept) < expected + bytes_of_scales


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_biases_come_with_the_casts(recipe, monkeypatch):
    """Biases of gate and up, too: the gradient that they are sums of is written in FP8 only."""
    from octofold.nn.autograd import layer_call, products

    operands, dy = case()
    for module, name in ((layer_call, "activated_gradient"), (products, "as_matrix")):
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(name))
    differentiated(fused(recipe), operands, dy)


@pytest.mark.parametrize("hidden", [1, 3, 127, 129])
@pytest.mark.parametrize("recipe", NAMES)
def test_odd_sizes(recipe, hidden):
    operands, dy = case(tokens=(129,), biases=False, hidden=hidden)
    results, grads = differentiated(fused(recipe), operands, dy)
    expected, expected_grads = differentiated(exact_mlp(), wide(operands), [dy[0].double()])
    assert relative_error(results[0], expected[0]) < 0.15
    assert max(errors(grads, expected_grads).values()) < 0.2


def test_a_recipe_with_gradients_in_high_precision():
    recipe = nn.Recipe(
        output=nn.Product("torchao", "128x128 torchao"), grad_input=None, grad_weight=None
    )
    operands, dy = case()
    _, grads = differentiated(fused(recipe), operands, dy)
    _, expected = differentiated(exact_mlp(), wide(operands), [dy[0].double()])
    found = errors(grads, expected)
    assert found.pop("down_bias") < 1e-5
    assert 0.005 < min(found.values()) < max(found.values()) < 0.05


def linears(bias=False):
    """Gate, up and down."""
    sizes = (IN, HIDDEN), (IN, HIDDEN), (HIDDEN, OUT)
    return [torch.nn.Linear(*size, bias) for size in sizes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recipe", NAMES)
def test_gate_and_up_apart_and_together(recipe, bias):
    """The same bits; in the first case names and parameters of three layers."""
    gate, up, down = linears(bias)
    apart = nn.MLP.from_linears(gate, up, down, recipe=recipe)
    assert apart.gate_proj.weight is gate.weight
    names = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
    assert [name for name in apart.state_dict() if name.endswith("weight")] == names
    both = torch.nn.Linear(IN, 2 * HIDDEN, bias)
    both.load_state_dict(
        {n: torch.cat((t, up.state_dict()[n])) for n, t in gate.state_dict().items()}
    )
    together = nn.MLP.from_linears(both, copy.deepcopy(down), recipe=recipe)
    assert set(together.state_dict()) == {
        f"{part}_proj.{name}" for part in ("gate_up", "down") for name in down.state_dict()
    }
    x = random(130, IN)
    assert torch.equal(step(apart, x)[0], step(together, x)[0])
    actual = {n: p.grad for n, p in apart.named_parameters()}
    for name, parameter in together.named_parameters():
        _, kind = name.split(".")
        if name.startswith("gate_up"):
            joined = torch.cat([actual[f"{part}_proj.{kind}"] for part in ("gate", "up")])
            assert torch.equal(joined, parameter.grad)
        else:
            assert torch.equal(actual[name], parameter.grad)
