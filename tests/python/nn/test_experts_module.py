"""octofold.nn.Experts and MixtureOfExperts as modules; casts of stacked weights."""

import copy

import octofold
import pytest
import torch
from octofold.nn.casting.casts import cast_weight, transposed_weight

from tests.python.casting import GRANULARITIES, cast_side
from tests.python.judge import assert_same
from tests.python.nn.expert_support import EXPERTS, HIDDEN, INNER, SLOTS, choices, poisoned_memory
from tests.python.nn.layer_support import random, relative_error, step

nn, functional = octofold.nn, torch.nn.functional
BF16 = torch.bfloat16
USED = torch.tensor([0, 2, 2, 2, 2, 5], dtype=torch.int32)  # by experts 0 and 4


def case(tokens=70, **options):
    module = nn.Experts(HIDDEN, INNER, EXPERTS, **options)
    return module, choices((tokens,)), torch.rand(tokens, SLOTS), random(tokens, HIDDEN)


class Routed(torch.nn.Module):
    """A module of x and routing weights, for ids that stay."""

    def __init__(self, module, ids):
        super().__init__()
        self.inner, self._ids = module, ids

    def forward(self, x, weights):
        return self.inner(x, self._ids, weights)


def experts_step(module, ids, weights, x):
    """The result, gradients of x and the routing weights, and those of the parameters."""
    return step(Routed(module, ids), x, weights)


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
@pytest.mark.parametrize("frozen", [False, True])
def test_experts_without_tokens_are_not_cast(recipe, frozen):
    """And nobody reads what then stays in the memory of the casts. Casts that are kept are of all
    experts."""
    module, _, weights, x = case(6, recipe=recipe, activation="geglu")
    module.requires_grad_(not frozen)
    ids = choices((6,), empty=EXPERTS - SLOTS)
    with nn.keep_casts(module):
        expected = experts_step(module, ids, weights, x)
    assert_same(experts_step(module, ids, weights, x), expected)
    whole = cast_weight(module.gate_up_proj, module.recipe, True, True)
    with poisoned_memory():
        casts = cast_weight(module.gate_up_proj, module.recipe, True, True, USED)
    for some, every in zip(casts, whole, strict=True):
        assert every.dequantize().isfinite().all()
        for expert in range(EXPERTS):
            if expert in (0, 4):
                assert some[expert].equals(every[expert])
            else:
                assert some[expert].data.float().isnan().all()
                assert some[expert].scale.isnan().all()


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_transposes_of_fp8_weights_have_the_same_codes(recipe):
    weight = torch.randn(3, 200, 136)
    recipe = nn.recipes.NAMED[recipe]
    format = recipe.grad_input.b
    codes = octofold.quantize(weight, format, matrices=3)
    transposed = transposed_weight(codes, recipe)
    assert transposed.equals(cast_side(weight, format, transpose=True, matrices=3))


def test_initial_weights():
    module = nn.Experts(64, 256, 3, bias=True)
    for name, parameter in module.named_parameters():
        bound = 64**-0.5 if "gate" in name else 256**-0.5
        assert 0.9 * bound < parameter.abs().max() <= bound


def fp8(weight, granularity="128x128", **options):
    """Each expert's, as a list."""
    format = octofold.Format("e4m3", granularity, rule="torchao", **options)
    return [octofold.quantize(one, format) for one in weight]


def checkpoint_of(module, inner, granularity="128x128", **options):
    """(gate, up, down) of each expert, as checkpoints have them, of a module's weights."""
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    return [
        fp8(part, granularity, **options) for part in (gate_up[:, :inner], gate_up[:, inner:], down)
    ]


@pytest.mark.parametrize(
    ("recipe", "granularity", "inner"), [("blockwise", "128x128", 128), ("rowwise", "channel", 192)]
)
def test_experts_of_a_checkpoint(recipe, granularity, inner):
    """Bytes as they are: what the layer computes that these are the casts of, with no gradients but
    those by the input. Codes and scales are in files under checkpoints' names."""
    layer = nn.Experts(HIDDEN, inner, EXPERTS, dtype=BF16, recipe=recipe)
    options = {"power_of_two": True} if recipe == "rowwise" else {}
    gate, up, down = checkpoint_of(layer, inner, granularity, **options)
    module = nn.Experts.from_experts(gate, up, down, recipe=recipe, compute="native")
    assert f"down_proj=Fp8Weight([{EXPERTS}, 256, {inner}]" in repr(module)
    assert [*module.state_dict()] == ["gate_up_proj", "down_proj"]
    weights_of = {name: module.get_parameter(name).scaled for name in module.state_dict()}
    for e in range(EXPERTS):
        for part, rows in ((gate, slice(0, inner)), (up, slice(inner, None))):
            codes = weights_of["gate_up_proj"].data[e, rows].view(torch.uint8)
            assert torch.equal(codes, part[e].data.view(torch.uint8))
    ids, weights, x = choices(), torch.rand(70, SLOTS), random(70, HIDDEN, dtype=BF16)
    y, dx, d_weights = experts_step(module, ids, weights, x)
    expected = experts_step(layer, ids, weights, x)
    assert_same([y, d_weights], [expected[0], expected[2]])
    assert relative_error(dx, expected[1]) < 0.08
    suffix = "_scale_inv" if granularity == "128x128" else "_scale"
    coded = {name: weight.data for name, weight in weights_of.items()}
    coded |= {f"{name}{suffix}": weight.scale for name, weight in weights_of.items()}
    for state in (coded, copy.deepcopy(module).half().state_dict()):
        twin = copy.deepcopy(module)
        for parameter in twin.parameters():
            parameter.zero_()
        twin.load_state_dict(dict(state))
        assert torch.equal(experts_step(twin, ids, weights, x)[0], y)


def test_experts_in_high_precision():
    module, ids, weights, x = case()
    gate, up = module.gate_up_proj.detach().chunk(2, dim=1)
    made = nn.Experts.from_experts([*gate], [*up], [*module.down_proj.detach()])
    assert_same(experts_step(made, ids, weights, x), experts_step(module, ids, weights, x))
    shared = nn.Experts.from_weights(module.gate_up_proj, module.down_proj)
    assert shared.gate_up_proj is module.gate_up_proj


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_files_of_the_other_kind(granularity):
    """Numbers are cast, each expert's apart; codes have numbers, but not without scales."""
    given = [random(EXPERTS, *shape) for shape in ((256, HIDDEN), (HIDDEN, 128))]
    layer = nn.Experts.from_weights(*given)
    format = octofold.Format(granularity=granularity, rule="torchao")
    matrices = None if granularity == "128x128" else EXPERTS  # then with scales of all rows in one
    ones = [octofold.quantize(torch.ones_like(one), format, matrices=matrices) for one in given]
    codes = [torch.nn.Parameter(nn.Fp8Weight.of(one, given[0].dtype, format)) for one in ones]
    product = nn.Product("1x128 torchao", format)
    others = {"grad_input": product, "grad_weight": nn.recipes.blockwise.grad_weight}
    recipe = nn.Recipe(output=product, **others)
    frozen = nn.Experts.from_weights(*codes, recipe=recipe)
    assert not frozen.down_proj.requires_grad
    frozen.load_state_dict(layer.state_dict())
    cast = octofold.quantize(given[1], format, matrices=EXPERTS)
    assert frozen.down_proj.scaled.equals(cast)
    layer.load_state_dict(frozen.state_dict())
    assert torch.equal(layer.down_proj, cast.dequantize())
    state = {"gate_up_proj": frozen.gate_up_proj.codes, "down_proj": frozen.down_proj.codes}
    with pytest.raises(RuntimeError, match=r"'gate_up_proj': expected bfloat16.*nn\.Fp8Weight"):
        layer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="'down_proj': expected its scales beside it, 'down_pro"):
        frozen.load_state_dict(state)


@pytest.mark.parametrize("router_dtype", [None, torch.float32])
@pytest.mark.parametrize("shared", [None, 64])
def test_mixture(shared, router_dtype):
    sizes = HIDDEN, 128, 8, 2, shared
    options = {"scoring": "sigmoid", "groups": 4, "top_groups": 2, "choice_bias": True}
    module = nn.MixtureOfExperts(*sizes, **options, dtype=BF16, router_dtype=router_dtype)
    assert module.gate.weight.dtype == (router_dtype or BF16)
    names = ["experts.gate_up_proj", "experts.down_proj", "gate.weight"]
    names += ["gate.e_score_correction_bias"]
    names += ["shared_experts.gate_up_proj.weight", "shared_experts.down_proj.weight"][
        : 0 if shared is None else 2
    ]
    assert [*module.state_dict()] == names
    assert module.half().bfloat16().gate.e_score_correction_bias.dtype == torch.float32
    x = random(3, 20, HIDDEN, dtype=BF16)
    y, dx, *rest = step(module, x)
    assert y.dtype == dx.dtype == BF16
    assert all(gradient.any() for gradient in rest)
    with torch.no_grad():
        logits = functional.linear(x.to(module.gate.weight.dtype), module.gate.weight)
        bias = module.gate.e_score_correction_bias
        ids, weights = nn.route(logits, 2, "sigmoid", True, bias, 4, 2)
        expected = module.experts(x, ids, weights)
        if shared is not None:
            expected = expected + module.shared_experts(x)
    assert torch.equal(y, expected)
    assert "groups=2 of 4" in str(module)
