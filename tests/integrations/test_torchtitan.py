"""torchtitan's models in FP8 by our converter, with the real torchtitan: its debug Llama, and the
experts of its debug DeepSeek-V3."""

import octofold
import pytest
import torch
from octofold.integrations.torchtitan import (
    OctofoldConverter,
    OctofoldGroupedExperts,
    OctofoldLinear,
)
from torchtitan.models import deepseek_v3, llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts

RECIPES = ["blockwise", "rowwise", "rowwise_with_gw_hp"]


def config_of(*converters):
    """The debug Llama with two layers, and an attention whose backward runs on the CPU."""
    config = llama3.model_registry("debugmodel", converters=list(converters)).model
    config.layers = config.layers[:2]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def built(config, dtype=torch.float32):
    torch.manual_seed(0)
    with torch.device("meta"):
        model = config.build()
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_states(buffer_device=torch.device("cpu"))
    return model.to(dtype)


def tokens():
    """Text of a machine: rows that repeat with a shift."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 2048, (8, 1), generator=generator) + 7 * torch.arange(65)
    return rows % 2048


def losses(model, steps=12):
    data = tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(data[:, :-1]).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_which_layers():
    model = built(config_of(OctofoldConverter.Config(recipe="rowwise")))
    model.verify_module_protocol()
    kinds = {name: type(m) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert kinds.pop("lm_head") is Linear
    assert set(kinds.values()) == {OctofoldLinear}
    assert len(kinds) == 2 * 5
    layer = model.layers["0"].feed_forward.w1
    assert isinstance(layer, octofold.nn.Linear)
    assert layer.recipe == octofold.nn.recipes.rowwise
    assert {n: p.shape for n, p in model.named_parameters()} == {
        n: p.shape for n, p in built(config_of()).named_parameters()
    }


def test_the_same_first_values():
    plain, model = built(config_of()), built(config_of(OctofoldConverter.Config()))
    for name, parameter in plain.state_dict().items():
        assert torch.equal(parameter, model.state_dict()[name])


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_beside_high_precision(recipe):
    plain = losses(built(config_of()))
    found = losses(built(config_of(OctofoldConverter.Config(recipe=recipe))))
    assert found[-1] < found[0] - 1
    assert found[0] != plain[0]
    assert abs(found[-1] - plain[-1]) < 0.05 * plain[0]


def test_a_layer_is_octofolds_to_the_bit():
    model = built(config_of(OctofoldConverter.Config(recipe="blockwise")), torch.bfloat16)
    layer, x = model.layers["1"].feed_forward.w2, torch.randn(3, 768).bfloat16()
    assert torch.equal(layer(x), octofold.linear(x, layer.weight, None, "blockwise"))


def test_filters():
    config = OctofoldConverter.Config(filter_fqns=["attention", "w2"])
    model = built(config_of(config))
    found = [n for n, m in model.named_modules() if isinstance(m, OctofoldLinear)]
    assert found[-1] == "lm_head"
    assert {name.rpartition(".")[2] for name in found} == {"w1", "w3", "lm_head"}


def experts_of(**options):
    """The experts of a layer of the debug DeepSeek-V3, and the plain ones with the same weights."""
    converter = OctofoldConverter.Config(**options)
    spec = deepseek_v3.model_registry("debugmodel", converters=[converter])
    plain = deepseek_v3.model_registry("debugmodel").model
    made = []
    for model in (spec.model, plain):
        experts = model.layers[1].moe.routed_experts.inner_experts.build()
        torch.manual_seed(0)
        for parameter in experts.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        made.append(experts)
    return made


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
def test_experts(recipe):
    experts, plain = experts_of(recipe=recipe)
    assert type(experts) is OctofoldGroupedExperts
    assert type(plain) is GroupedExperts
    counts = torch.tensor([5, 0, 130, 1, 17, 40, 0, 7])
    rows = int(counts.sum())
    x = torch.randn(rows + 9, 256).requires_grad_()
    y = experts(x, counts)
    dy = torch.randn(rows, 256)
    y[:rows].backward(dy)
    assert not y[rows:].any()
    assert not x.grad[rows:].any()
    wide = x.detach().double().requires_grad_()
    w1, w2, w3 = (w.detach().double().requires_grad_() for w in plain.parameters())
    parts = wide[:rows].split(counts.tolist())
    silu = torch.nn.functional.silu
    expected = [
        (silu(part @ a.T) * (part @ c.T)) @ b.T
        for part, a, b, c in zip(parts, w1, w2, w3, strict=True)
    ]
    torch.cat(expected).backward(dy.double())
    pairs = [(y[:rows], torch.cat(expected).detach()), (x.grad[:rows], wide.grad[:rows])]
    pairs += zip((p.grad for p in experts.parameters()), (w1.grad, w2.grad, w3.grad), strict=True)
    for found, exact in pairs:
        error = float((found.detach().double() - exact).norm() / exact.norm())
        assert 0.01 < error < 0.1


def test_routers_heads_and_experts_of_deepseek():
    spec = deepseek_v3.model_registry("debugmodel", converters=[OctofoldConverter.Config()])
    moe = spec.model.layers[1].moe
    assert type(moe.router.gate) is Linear.Config
    assert type(moe.routed_experts.inner_experts) is OctofoldGroupedExperts.Config
    assert type(moe.shared_experts.w1) is OctofoldLinear.Config
    converter = OctofoldConverter.Config(grouped_experts=False)
    spec = deepseek_v3.model_registry("debugmodel", converters=[converter])
    experts = spec.model.layers[1].moe.routed_experts.inner_experts
    assert type(experts) is GroupedExperts.Config


def test_bad_input():
    with pytest.raises(
        octofold.InvalidArgumentError, match="'recipe': expected a Recipe or one of"
    ):
        OctofoldConverter.Config(recipe="fp7").build()
    with pytest.raises(octofold.InvalidArgumentError, match="'filter_fqns': expected to leave"):
        config_of(OctofoldConverter.Config(filter_fqns=[""]))
    converter = OctofoldConverter.Config(recipe="rowwise_with_gw_hp")
    with pytest.raises(octofold.InvalidArgumentError, match="products are all in FP8"):
        deepseek_v3.model_registry("debugmodel", converters=[converter])


def test_tensor_parallelism_is_refused():
    class Dims:
        tp_enabled, tp = True, 4

    model = built(config_of(OctofoldConverter.Config()))
    with pytest.raises(octofold.UnsupportedError, match="got tensor_parallel_degree=4"):
        model.layers["0"].feed_forward.w1.parallelize(Dims())
