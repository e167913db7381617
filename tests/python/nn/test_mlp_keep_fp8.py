"""MLPs that keep gate and up in FP8 between forward and backward."""

import octofold
import pytest

from tests.python.nn.fused_support import (
    BF16,
    FP32,
    HIDDEN,
    IN,
    OUT,
    activation,
    bytes_kept,
    differentiated,
    exact_mlp,
    mlp_operands,
    wide,
)
from tests.python.nn.layer_support import STATELESS, random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn


def case(dtype=FP32, **options):
    operands = mlp_operands(dtype, **{"biases": False} | options)
    return operands, [random(2, 65, OUT, dtype=dtype)]


def mlp(recipe="blockwise", name="swiglu", keep_fp8=True):
    def function(**operands):
        return octofold.mlp(**operands, activation=name, recipe=recipe, keep_fp8=keep_fp8)

    return function


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("recipe", STATELESS)
def test_gradients_against_float64(recipe, biases):
    """Through the activation another cast, of 0.026 of gate and of up, adds to those that there
    are. Nothing else changes, but where the second weight's gradient is of high precision: the
    activation is worked out from these for it."""
    operands, dy = case(biases=biases)
    results, grads = differentiated(mlp(recipe), operands, dy)
    plain, plain_grads = differentiated(mlp(recipe, keep_fp8=False), operands, dy)
    assert torch.equal(results[0], plain[0])
    _, expected = differentiated(exact_mlp(), wide(operands), [dy[0].double()])
    for name in ("x", "gate_up_weight", "gate_up_bias"):
        if name in grads:
            error, before = (relative_error(g[name], expected[name]) for g in (grads, plain_grads))
            assert before < error < (before**2 + 0.04**2) ** 0.5, name
    if recipe == "rowwise_with_gw_hp":
        assert relative_error(grads["down_weight"], expected["down_weight"]) < 0.075
    else:
        assert torch.equal(grads["down_weight"], plain_grads["down_weight"])


@pytest.mark.parametrize("name", ["swiglu", "geglu", "gelu"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_goes_back_from_what_the_codes_stand_for(recipe, name):
    """The gradients of the unfused composition whose activation has its input from a 1x128 cast."""
    operands, dy = case(BF16, name=name)
    _, grads = differentiated(mlp(recipe, name), operands, dy)
    x, gate_up_weight, down_weight, *_ = (
        None if t is None else t.clone().requires_grad_() for t in operands.values()
    )
    gate_up = octofold.linear(x, gate_up_weight, recipe=recipe)
    h = activation(gate_up.detach().double(), name).to(BF16).requires_grad_()
    octofold.linear(h, down_weight, recipe=recipe).backward(dy[0])
    rule = octofold.nn.recipes.NAMED[recipe].output.a.rule
    kept = octofold.quantize(gate_up.detach(), octofold.Format(rule=rule)).dequantize("bfloat16")
    leaf = kept.double().requires_grad_()
    activation(leaf, name).backward(h.grad.double())
    gate_up.backward(leaf.grad.to(BF16))
    limit = 2**-5 if recipe == "rowwise_with_gw_hp" else 0
    for argument, operand in (("x", x), ("gate_up_weight", gate_up_weight)):
        assert relative_error(grads[argument], operand.grad) <= limit, argument


@pytest.mark.parametrize("recipe", STATELESS)
def test_bytes_kept(recipe):
    operands, _ = case(BF16)
    for operand in operands.values():
        if operand is not None:
            operand.requires_grad_()

    def kept(keep_fp8):
        tensors = bytes_kept(lambda: mlp(recipe, keep_fp8=keep_fp8)(**operands))
        return {(str(dtype), shape) for dtype, shape in tensors}

    with_fp8, without = kept(True), kept(False)
    shape = (2, 65, 2 * HIDDEN)
    assert without - with_fp8 == {("torch.bfloat16", shape)}
    scale = ("torch.float32", (2, 65, -(-2 * HIDDEN // 128)))
    assert with_fp8 - without == {("torch.float8_e4m3fn", shape), scale}


def test_with_nothing_to_differentiate():
    operands, _ = case(BF16)
    with torch.no_grad():
        assert torch.equal(mlp()(**operands), mlp(keep_fp8=False)(**operands))


@pytest.mark.parametrize("norm", [None, "rms"])
def test_module(norm):
    """The function's bits; from layers it has the option too, and says so."""
    gate, up = (torch.nn.Linear(IN, HIDDEN, False, dtype=BF16) for _ in range(2))
    down = torch.nn.Linear(HIDDEN, OUT, False, dtype=BF16)
    of_norm = None if norm is None else torch.nn.RMSNorm(IN, dtype=BF16)
    module = nn.MLP.from_linears(
        gate, up, down, norm=of_norm, recipe="blockwise", force_fp8=True, keep_fp8=True
    )
    x, dy = random(3, IN, dtype=BF16), random(3, OUT, dtype=BF16)
    leaf = x.clone().requires_grad_()
    module(leaf).backward(dy)
    operands = {"x": x, "gate_up_weight": torch.cat((gate.weight, up.weight)).detach()}
    operands |= {"down_weight": down.weight.detach(), "gate_up_bias": None, "down_bias": None}

    def function(**operands):
        before = {} if norm is None else {"norm": norm, "epsilon": torch.finfo(BF16).eps}
        if norm is not None:
            before["norm_weight"] = torch.ones(IN, dtype=BF16)
        return octofold.mlp(**operands, **before, keep_fp8=True)

    _, grads = differentiated(function, operands, [dy])
    assert torch.equal(leaf.grad, grads["x"])
    assert torch.equal(torch.cat((gate.weight.grad, up.weight.grad)), grads["gate_up_weight"])
    assert "keep_fp8=True" in repr(module)
    assert "keep_fp8=True" in repr(nn.MLP(IN, HIDDEN, keep_fp8=True))
