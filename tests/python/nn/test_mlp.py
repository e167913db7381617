"""MLPs as one: against FP64, against what is not fused, what they keep, what they do not do."""

import octofold
import pytest

from tests.python.nn.fused_support import (
    BF16,
    CURVES,
    FP16,
    FP32,
    GATES,
    HIDDEN,
    IN,
    OUT,
    activation,
    bytes_kept,
    differentiated,
    exact_mlp,
    fused_casts,
    mlp_operands,
    norm_operands,
    wide,
)
from tests.python.nn.layer_support import STATELESS, random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn
ACTIVATIONS = (*GATES, *CURVES)

__all__ = ["fused_casts"]


def case(dtype=FP32, tokens=(2, 65), **options):
    return mlp_operands(dtype, tokens, **options), [random(*tokens, OUT, dtype=dtype)]


def fused(recipe="blockwise", name="swiglu", **options):
    def function(**operands):
        return octofold.mlp(**operands, activation=name, recipe=recipe, **options)

    return function


def errors(actual, expected):
    return {name: relative_error(grad, expected[name]) for name, grad in actual.items()}


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("recipe", STATELESS)
def test_gradients_against_float64(recipe, biases):
    """Each product adds an error of 0.037 of its operands (0.058 with gradients in e5m2): three go
    into dx and the first weight's gradient, two into the second's. Biases have none, and make that
    of what goes through them smaller."""
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


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("biases", [True, False])
def test_activations(name, biases):
    operands, dy = case(name=name, biases=biases)
    results, grads = differentiated(fused(name=name), operands, dy)
    expected, expected_grads = differentiated(exact_mlp(name), wide(operands), [dy[0].double()])
    assert relative_error(results[0], expected[0]) < 0.065
    assert max(errors(grads, expected_grads).values()) < 0.1


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_with_a_norm(recipe, kind):
    operands, dy = case()
    operands |= norm_operands(features=IN)
    dy.append(random(2, 65, IN))
    results, grads = differentiated(fused(recipe, norm=kind), operands, dy)
    expected, expected_grads = differentiated(
        exact_mlp(kind=kind), wide(operands), [g.double() for g in dy]
    )
    assert relative_error(results[0], expected[0]) < 0.055
    assert torch.equal(results[1], operands["x"] + operands["residual"])
    limit = 0.12 if recipe == "tensorwise" else 0.09
    assert max(errors(grads, expected_grads).values()) < limit


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("recipe", STATELESS)
def test_is_the_unfused_composition(recipe, name, dtype):
    """Output and gradients, bit for bit, are those of linear() and of the activation, worked out
    exactly and rounded once."""
    operands, dy = case(dtype, name=name, biases=False)
    results, grads = differentiated(fused(recipe, name), operands, dy)
    x, gate_up_weight, down_weight, *_ = (
        None if t is None else t.clone().requires_grad_() for t in operands.values()
    )
    gate_up = octofold.linear(x, gate_up_weight, recipe=recipe)
    leaf = gate_up.detach().double().requires_grad_()
    h = activation(leaf, name)
    rounded = h.detach().to(dtype).requires_grad_()
    y = octofold.linear(rounded, down_weight, recipe=recipe)
    y.backward(dy[0])
    h.backward(rounded.grad.double())
    gate_up.backward(leaf.grad.to(dtype))
    assert torch.equal(results[0], y)
    expected = {"x": x, "gate_up_weight": gate_up_weight, "down_weight": down_weight}
    for argument, operand in expected.items():
        if recipe != "rowwise_with_gw_hp":  # which has the activation from torch
            assert torch.equal(grads[argument], operand.grad), argument
        assert relative_error(grads[argument], operand.grad) < 2**-5


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("recipe", STATELESS)
def test_without_gradients(recipe, name, fused_casts):
    """The same bits; where it is one kernel it is one call."""
    operands, _ = case(BF16, name=name, biases=False)
    with_gradient = fused(recipe, name)(**operands | {"x": operands["x"].clone().requires_grad_()})
    fused_casts.clear()
    with torch.no_grad():
        assert torch.equal(fused(recipe, name)(**operands), with_gradient)
    one_kernel = recipe == "blockwise" and name in GATES
    first = ["gated_gemm"] if one_kernel else ["gemm", "Activated"]
    assert [call for call, _ in fused_casts] == [*first, "gemm"]


@pytest.mark.parametrize("recipe", STATELESS)
def test_bytes_kept(recipe):
    """gate and up in BF16, x and the activation in FP8; or x itself."""
    operands, _ = case(BF16, tokens=(520,), biases=False)
    for operand in operands.values():
        if operand is not None:
            operand.requires_grad_()
    kept = bytes_kept(lambda: fused(recipe)(**operands))
    large = sorted((str(dtype), shape) for dtype, shape in kept if 520 in shape)
    expected = [("torch.bfloat16", (520, 2 * HIDDEN))]
    if recipe == "rowwise_with_gw_hp":
        expected.append(("torch.bfloat16", (520, IN)))
    else:
        expected += [("torch.float8_e4m3fn", (size, 520)) for size in (IN, HIDDEN)]
    assert large == sorted(expected)


def test_only_what_needs_a_gradient(fused_casts):
    operands, dy = case()
    activate, gradient = "Activated", "ActivationGradient"
    for needs, backward in (
        ("x", ["gemm", gradient, "gemm"]),
        ("gate_up_weight", ["gemm", gradient, "gemm"]),
        ("gate_up_bias", ["gemm"]),
        ("down_weight", ["gemm"]),
        ("down_bias", []),
    ):
        leaves = {name: operand.clone() for name, operand in operands.items()}
        leaves[needs].requires_grad_()
        fused_casts.clear()
        y = fused()(**leaves)
        assert [name for name, _ in fused_casts] == ["gemm", activate, "gemm"]
        kept = bytes_kept(lambda leaves=leaves: fused()(**leaves))
        assert any(shape[-1] == 2 * HIDDEN for _, shape in kept) == (needs[:4] in ("x", "gate"))
        fused_casts.clear()
        y.backward(dy[0])
        assert [name for name, _ in fused_casts] == backward
        assert [name for name, leaf in leaves.items() if leaf.grad is not None] == [needs]


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_biases_come_with_the_casts(recipe, monkeypatch):
    """Biases of gate and up, too: the gradient that they are sums of is written in FP8 only."""
    from octofold.nn.autograd import chain as chains
    from octofold.nn.autograd import products

    operands, dy = case()
    for module, name in ((chains, "activated_gradient"), (products, "as_matrix")):
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(name))
    _, grads = differentiated(fused(recipe), operands, dy)
    _, expected = differentiated(exact_mlp(), wide(operands), [dy[0].double()])
    assert relative_error(grads["down_bias"], expected["down_bias"]) < 1e-6
    assert relative_error(grads["gate_up_bias"], expected["gate_up_bias"]) < 0.1


@pytest.mark.parametrize("hidden", [1, 3, 127, 129])
@pytest.mark.parametrize("recipe", STATELESS)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": random(3, 191)}, r"'x': expected \[..., 192\] for gate_up_weight \[320, 192\]"),
        ({"x": random(3, 192).double()}, "'x': expected a torch tensor of .*float64"),
        ({"gate_up_weight": random(192)}, r"'gate_up_weight': expected \[out, in\]"),
        ({"gate_up_weight": random(321, 192)}, "'gate_up_weight': expected an even number"),
        ({"down_weight": random(136, 161)}, r"'down_weight': expected \[out, 160\], as swiglu"),
        ({"activation": "gelu"}, r"'down_weight': expected \[out, 320\], as gelu"),
        ({"down_weight": random(136, 160).to("meta")}, "'down_weight': expected a tensor on cpu"),
        ({"gate_up_bias": random(319)}, r"'gate_up_bias': expected \[320\]"),
        ({"down_bias": random(135)}, r"'down_bias': expected \[136\]"),
        ({"activation": "tanh"}, "'activation': expected one of swiglu, .*, got 'tanh'"),
        ({"recipe": "delayed"}, "'recipe': expected one without delayed .*, got delayed"),
        ({"norm": "batch"}, "'norm': expected one of rms, layer, got 'batch'"),
        ({"residual": random(3, 192)}, "'residual': expected None without a norm"),
        ({"norm_weight": random(192)}, "'norm_weight': expected None without a norm"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"x": random(3, IN), "gate_up_weight": random(320, IN)}
    arguments["down_weight"] = random(OUT, HIDDEN)
    with pytest.raises(octofold.InvalidArgumentError, match="^mlp: argument " + message):
        octofold.mlp(**(arguments | change))
