"""octofold.nn.MLP: its names, its parts one after the other, what is cast when."""

import copy

import octofold
import pytest
from fused_support import CURVES, GATES, fused_casts, step
from layer_support import STATELESS, random, relative_error

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


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [("blockwise", None), ("blockwise", "rms"), ("rowwise", "layer"), ("tensorwise", None)],
)
def test_module(recipe, kind):
    """As its parts one after the other; under checkpointing and torch.compile; copied."""
    torch.compiler.reset()
    features = torch.nn.RMSNorm(IN) if kind == "rms" else torch.nn.LayerNorm(IN)
    module = nn.MLP.from_linears(*linears(), norm=None if kind is None else features, recipe=recipe)
    inputs = [random(130, IN)] * (1 if kind is None else 2)
    inputs = [t.clone() for t in inputs]
    expected = step(module, *inputs)

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, *inputs):
            return torch.utils.checkpoint.checkpoint(self.inner, *inputs, use_reentrant=False)

    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    for other in (Checkpointed(), compiled, copy.deepcopy(module)):
        for left, right in zip(step(other, *inputs), expected, strict=True):
            assert torch.equal(left, right)
    nn.restore(module)
    assert type(module.up_proj) is torch.nn.Linear
    for left, right in zip(step(module, *inputs), expected, strict=True):
        assert 1e-6 < relative_error(left, right) < 0.2


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


@pytest.mark.parametrize("together", [True, False])
def test_weights_are_cast_in_each_forward_or_once_where_casts_are_kept(together, casts):
    module = nn.MLP.from_linears(*linears(together=together))
    whole, x = (2 * HIDDEN, IN), random(130, IN)
    for _ in range(2):
        step(module, x)
    assert casts.count(whole) == casts.count((OUT, HIDDEN)) == 2
    casts.clear()
    with nn.keep_casts(module):
        for _ in range(2):
            step(module, x)
        assert casts.count(whole) == casts.count((OUT, HIDDEN)) == 1
        with torch.no_grad():
            module.down_proj.weight.add_(1)
        with pytest.raises(octofold.InvalidArgumentError, match="weights that stay as they are"):
            step(module, x)


@pytest.mark.slow
def test_sizes_do_not_recompile():
    torch.compiler.reset()
    parts = nn.NormLinear(IN, IN, norm="layer"), nn.MLP(IN, HIDDEN, norm="rms")
    model = torch.nn.Sequential(*parts)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    step(compiled, random(260, IN))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (261, 1000):
            x = random(tokens, IN)
            for left, right in zip(step(compiled, x), step(model, x), strict=True):
                assert torch.equal(left, right)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise_with_gw_hp"])
def test_main_grad(recipe, together):
    """Added to, in FP32; eager and compiled; for one of the layers, then for all."""
    torch.compiler.reset()
    module = nn.MLP.from_linears(
        *linears(together=together), norm=torch.nn.RMSNorm(IN), recipe=recipe
    )
    x = random(130, IN)
    step(module, x)
    expected = {name: p.grad.clone() for name, p in module.named_parameters()}
    layers = [layer for layer in module.children() if isinstance(layer, nn.Linear)]
    for count in (1, len(layers)):
        for layer in layers[:count]:
            layer.main_grad = True
            layer.weight.main_grad = torch.ones_like(layer.weight)
        for run in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
            module.zero_grad()
            run(x).square().sum().backward()
        for name, parameter in module.named_parameters():
            if hasattr(parameter, "main_grad"):
                assert parameter.grad is None
                assert relative_error(parameter.main_grad - 1, 2 * expected[name]) < 1e-5
            else:
                assert torch.equal(parameter.grad, expected[name])


@pytest.mark.parametrize("frozen", ["gate_proj", "up_proj", "down_proj"])
def test_frozen_layers(frozen):
    module = nn.MLP.from_linears(*linears())
    expected = dict(
        zip(dict(module.named_parameters()), step(module, random(130, IN))[2:], strict=True)
    )
    assert all(grad is not None for grad in expected.values())
    getattr(module, frozen).requires_grad_(False)
    module.zero_grad()
    module(random(130, IN)).sum().backward()
    for name, parameter in module.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen)


def test_convert_leaves_it_alone():
    model = torch.nn.Sequential(nn.MLP(IN, HIDDEN), torch.nn.Linear(IN, 8))
    nn.convert(model, "rowwise")
    assert model[0].down_proj.recipe == nn.recipes.blockwise
    assert type(model[1]) is nn.Linear
    with pytest.raises(octofold.InvalidArgumentError, match="'model': expected a torch"):
        nn.convert(torch.nn.Sequential(nn.MLP(IN, HIDDEN)))


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
