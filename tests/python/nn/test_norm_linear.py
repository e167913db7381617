"""Norm and linear layer as one: against FP64, and what it keeps."""

import octofold
import pytest
import torch
from octofold.distributed.tensor_parallel.chain import over_ranks
from octofold.nn.autograd.boundary import Sides

from tests.python.nn.fused_support import (
    BF16,
    FP32,
    bytes_kept,
    differentiated,
    exact_norm_linear,
    norm_operands,
    size_of,
    wide,
)
from tests.python.nn.layer_support import NAMES, random, relative_error

nn = octofold.nn
IN, OUT = 192, 136
NORMS = ("rms", "layer")


def case(dtype=FP32, tokens=(2, 65), residual=True):
    operands = norm_operands(tokens, IN, dtype, residual)
    operands |= {"weight": random(OUT, IN, dtype=dtype) / IN**0.5, "bias": random(OUT, dtype=dtype)}
    dy = [random(*tokens, OUT, dtype=dtype)]
    return operands, dy + [random(*tokens, IN, dtype=dtype)] * residual


def fused(kind, recipe):
    def function(**operands):
        return octofold.norm_linear(**operands, norm=kind, recipe=recipe)

    return function


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("recipe", NAMES)
def test_gradients_against_float64(recipe, kind, residual):
    """dx and the norm's have the error of dY·W; through the sum dx has an exact part too."""
    operands, dy = case(residual=residual)
    results, grads = differentiated(fused(kind, recipe), operands, dy)
    expected, expected_grads = differentiated(
        exact_norm_linear(kind), wide(operands), [g.double() for g in dy]
    )
    assert relative_error(results[0], expected[0]) < 0.042
    assert not residual or torch.equal(results[1], operands["x"] + operands["residual"])
    limit = 0.065 if recipe == "tensorwise" else 0.042
    limits = dict.fromkeys(grads, limit) | {"bias": 1e-5}
    if recipe == "rowwise_with_gw_hp":
        limits["weight"] = 1e-5
    for name, grad in grads.items():
        error = relative_error(grad, expected_grads[name])
        assert error < limits[name] * (1.1 if name.startswith("norm") else 1), name
        assert limits[name] == 1e-5 or residual or error > 0.4 * limits[name], f"{name}: no cast"


@pytest.mark.parametrize("recipe", NAMES)
def test_bytes_kept(recipe):
    """The sum, its statistics and the norm's transposed cast; no norm in BF16."""
    operands, _ = case(BF16, tokens=(520,))
    for operand in operands.values():
        operand.requires_grad_()
    kept = bytes_kept(lambda: fused("rms", recipe)(**operands))
    of_token = 2 * IN + 4 + (0 if recipe == "rowwise_with_gw_hp" else IN)
    expected = 520 * of_token + operands["weight"].numel()
    assert expected <= size_of(kept) < 1.05 * expected


@pytest.mark.parametrize("sides", [None, Sides(compute=over_ranks)], ids=["whole", "of a rank"])
def test_bytes_kept_for_the_weights_gradient(sides):
    """The cast alone."""
    module = nn.NormLinear(IN, OUT, dtype=BF16, force_fp8=True).requires_grad_(False)
    module.linear.weight.requires_grad_()
    module.linear.sides = sides
    kept = size_of(bytes_kept(lambda: module(random(520, IN, dtype=BF16))))
    assert 520 * IN <= kept < 1.05 * 520 * IN


def test_the_sum_alone():
    """Goes on where the layer's result is not used, and the other way round."""
    operands, dy = case()
    leaves = {n: t.clone().requires_grad_() for n, t in operands.items()}
    _, total = fused("rms", "blockwise")(**leaves)
    total.backward(dy[1])
    assert torch.equal(leaves["x"].grad, dy[1])
    assert torch.equal(leaves["residual"].grad, dy[1])
    assert not leaves["weight"].grad.any()


def test_from_modules():
    linear, norm_module = torch.nn.Linear(IN, OUT), torch.nn.RMSNorm(IN)
    module = nn.NormLinear.from_modules(norm_module, linear, "rowwise")
    assert module.linear.weight is linear.weight
    assert module.norm is norm_module
    assert module.linear.recipe == nn.recipes.rowwise
    assert set(module.state_dict()) == {"norm.weight", "linear.weight", "linear.bias"}
    x = random(130, IN)
    rms = torch.nn.functional.rms_norm(x, (IN,))  # of no given epsilon: FP32's
    assert relative_error(module(x), octofold.linear(rms, *linear.parameters(), "rowwise")) < 1e-2
    module = nn.NormLinear.from_modules(torch.nn.LayerNorm(IN, bias=False), nn.Linear(IN, OUT))
    assert module(x).shape == (130, OUT)
