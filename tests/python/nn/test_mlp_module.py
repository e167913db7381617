"""octofold.nn.MLP: its names, its parts one after the other, what is cast when."""

import copy

import octofold
import pytest

from tests.python.nn.fused_support import CURVES, GATES, fused_casts
from tests.python.nn.layer_support import STATELESS, random, step

torch = pytest.importorskip("torch")

nn = octofold.nn
IN, HIDDEN, OUT = 192, 160, 136

__all__ = ["fused_casts"]


def linears(bias=False, together=False, name="swiglu"):
    if name in CURVES:
        first = [torch.nn.Linear(IN, HIDDEN, bias)]
    elif together:
        first = [torch.nn.Linear(IN, 2 * HIDDEN, bias)]
    else:
        first = [torch.nn.Linear(IN, HIDDEN, bias) for _ in range(2)]
    return [*first, torch.nn.Linear(HIDDEN, OUT, bias)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recipe", STATELESS)
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
    step(apart, x), step(together, x)
    actual = {n: p.grad for n, p in apart.named_parameters()}
    for name, parameter in together.named_parameters():
        _, kind = name.split(".")
        if name.startswith("gate_up"):
            joined = torch.cat([actual[f"{part}_proj.{kind}"] for part in ("gate", "up")])
            assert torch.equal(joined, parameter.grad)
        else:
            assert torch.equal(actual[name], parameter.grad)
    with torch.no_grad():
        assert torch.equal(apart(x), together(x))


@pytest.mark.parametrize("name", [*GATES, *CURVES])
def test_of_sizes(name):
    module = nn.MLP(IN, HIDDEN, OUT, True, name, norm="rms")
    first = module.gate_up_proj if name in GATES else module.up_proj
    x = random(130, IN)
    arguments = first.weight, module.down_proj.weight, first.bias, module.down_proj.bias, name
    norm_weight = {"norm": "rms", "norm_weight": module.norm.weight}
    assert torch.equal(module(x), octofold.mlp(x, *arguments, **norm_weight))
    assert nn.MLP(IN, HIDDEN)(x).shape == (130, IN)
    assert str(module).count(name) == 1


def test_where_fp8_loses_parts_are_run(monkeypatch, fused_casts):
    from octofold.nn.layers import linear, parts

    for module in (linear, parts):
        monkeypatch.setattr(module, "fp8_wins", lambda *sizes: False)
    gate, up, down = linears()
    module, x = nn.MLP.from_linears(gate, up, down), random(130, IN)
    assert torch.equal(module(x), down(torch.nn.functional.silu(gate(x)) * up(x)))
    assert not fused_casts
    module = nn.MLP.from_linears(gate, up, down, force_fp8=True)
    module(x)
    assert fused_casts


def test_bad_parts():
    gate, up, down = linears()
    wrong = torch.nn.Linear(IN, HIDDEN + 1, bias=False)
    for arguments, options, message in (
        ((gate, down, up), {}, "'linears': expected gate and up of one shape"),
        ((gate, wrong, down), {}, "'linears': expected gate and up of one shape, got .*161"),
        ((gate, torch.nn.Linear(IN, HIDDEN), down), {}, "of one shape, got .*bias=True"),
        ((gate, up, up), {}, r"'linears': expected \[out, 160\]"),
        ((gate,), {}, "'linears': expected 2 layers or 3 layers for swiglu, got 1"),
        ((gate, up, down), {"activation": "gelu"}, "'linears': expected 2 layers for gelu, got 3"),
        ((gate, up, torch.nn.ReLU()), {}, r"'linears\[2\]': expected a torch.nn.Linear or"),
        ((gate, up, down), {"recipe": "delayed"}, "'recipe': expected one without delayed"),
        (
            (gate, up, nn.Linear(HIDDEN, OUT, recipe="rowwise")),
            {},
            "one recipe, got blockwise, row",
        ),
        ((gate, up, down), {"norm": torch.nn.RMSNorm(8)}, r"'norm': expected one over \[192\]"),
        ((gate, up, down), {"norm": "rms"}, "'norm': expected a torch.nn.RMSNorm or"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            nn.MLP.from_linears(*arguments, **options)
    with pytest.raises(octofold.InvalidArgumentError, match="'residual': expected None"):
        nn.MLP.from_linears(gate, up, down)(random(3, IN), random(3, IN))
    with pytest.raises(octofold.InvalidArgumentError, match="'hidden_features'"):
        nn.MLP(IN, 0)
