"""octofold.nn.convert_experts: blocks of transformers against their own modules."""

import copy

import octofold
import pytest
from octofold import InvalidArgumentError, ScaledTensor

from tests.python.judge import assert_same
from tests.python.nn.layer_support import random, relative_error, step

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from transformers import (  # noqa: E402
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

nn = octofold.nn
BF16 = torch.bfloat16
COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "experts_implementation": "eager",
}
MODELS = {
    "mixtral": lambda **options: MixtralForCausalLM(
        MixtralConfig(
            **COMMON
            | {"intermediate_size": 192, "num_local_experts": 6, "num_experts_per_tok": 2}
            | options
        )
    ),
    "qwen3_moe": lambda **options: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **COMMON
            | {"moe_intermediate_size": 192, "intermediate_size": 256, "num_experts": 8}
            | {"num_experts_per_tok": 4, "head_dim": 64, "norm_topk_prob": True}
            | options
        )
    ),
    "deepseek_v3": lambda **options: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **COMMON
            | {"moe_intermediate_size": 128, "intermediate_size": 256, "n_routed_experts": 16}
            | {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
            | {"first_k_dense_replace": 1, "num_key_value_heads": 4}
            | {"q_lora_rank": 64, "kv_lora_rank": 64, "v_head_dim": 64}
            | {"qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
            | options
        )
    ),
}


def model_of(name, **options):
    torch.manual_seed(0)
    model = MODELS[name](**options)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.dim() > 1:
                tensor.normal_(std=tensor.shape[-1] ** -0.5)
            elif key.endswith("e_score_correction_bias"):
                tensor.normal_(std=0.1)
    return model


def block_of(name, **options):
    """The block of experts of the last layer, for x [..., 256]."""
    return copy.deepcopy(model_of(name, **options).model.layers[-1].mlp)


def description(module):
    return {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixtral", {}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("deepseek_v3", {}),
        ("deepseek_v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
        ("mixtral", {"hidden_act": "gelu_pytorch_tanh"}),
    ],
)
def test_block(name, options, recipe):
    """The same experts with the same weights; results and gradients as near as FP8 is; the same
    parameters under the same names."""
    theirs = block_of(name, **options)
    mine = copy.deepcopy(theirs)
    parameters = dict(mine.named_parameters())
    assert nn.convert_experts(mine, recipe).model is mine
    assert description(mine) == description(theirs)
    assert all(p is parameters[key] for key, p in mine.named_parameters())
    assert type(mine.experts) is nn.Experts
    assert mine.experts.recipe == getattr(nn.recipes, recipe)
    assert isinstance(mine.gate, type(theirs.gate))
    x = random(2, 40, 256)
    with torch.no_grad():
        logits, weights, ids = mine.gate(x)
        their_logits, their_weights, their_ids = theirs.gate(x)
    assert torch.equal(logits, their_logits)
    order, their_order = ids.argsort(-1), their_ids.argsort(-1)
    assert torch.equal(ids.gather(-1, order).long(), their_ids.gather(-1, their_order))
    assert torch.allclose(weights.gather(-1, order), their_weights.gather(-1, their_order))
    for left, right in zip(step(mine, x), step(theirs, x), strict=True):
        assert left.shape == right.shape
        assert 1e-3 < relative_error(left, right) < 0.1
    assert_same(step(copy.deepcopy(mine), x), step(mine, x))


@pytest.mark.parametrize("name", [*MODELS])
def test_model(name):
    """Whole: logits, loss and what routers put out, recorded as before; other linear layers by
    convert(); files of the model as it was."""
    theirs = model_of(name)
    mine = nn.convert_experts(copy.deepcopy(theirs)).model
    tokens = torch.randint(0, 96, (2, 24))
    options = {"input_ids": tokens, "labels": tokens}
    if name != "deepseek_v3":
        options["output_router_logits"] = True
    results = [model(**options) for model in (mine, theirs)]
    assert relative_error(results[0].logits, results[1].logits) < 0.2
    if name != "deepseek_v3":
        assert len(results[0].router_logits) == len(results[1].router_logits) == 2
        assert torch.equal(results[0].router_logits[0], results[1].router_logits[0])
        assert torch.allclose(results[0].aux_loss, results[1].aux_loss, rtol=0.1)
    results[0].loss.backward()
    for key, parameter in mine.named_parameters():
        assert parameter.grad is not None, key
    assert description(mine) == description(theirs)
    mine.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert torch.equal(mine(tokens).logits, results[0].logits)
    nn.convert(mine, module_filter_fn=lambda _, fqn: fqn != "lm_head")
    assert description(mine) == description(theirs)
    assert relative_error(mine(tokens).logits, results[1].logits) < 0.4


def test_filter_and_experts_alone():
    model = nn.convert_experts(
        model_of("mixtral"), module_filter_fn=lambda _, fqn: fqn == "model.layers.1.mlp.experts"
    ).model
    first, second = (layer.mlp for layer in model.model.layers)
    assert type(second.experts) is nn.Experts
    assert type(first.experts).__name__ == "MixtralExperts"
    x = random(7, 256)
    alone = nn.convert_experts(first.experts).model
    assert type(alone) is nn.Experts
    assert alone.gate_up_proj is first.experts.gate_up_proj
    _, weights, ids = first.gate(x)
    assert relative_error(alone(x, ids, weights), first.experts(x, ids, weights)) < 0.1
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected to pick"):
        nn.convert_experts(first, module_filter_fn=lambda *_: False)
    assert type(first.experts).__name__ == "MixtralExperts"


def test_fp8_experts():
    """Experts of an FP8 checkpoint, as transformers holds it, keep the bytes that came."""
    from transformers.integrations.finegrained_fp8 import FP8Experts
    from transformers.integrations.moe import use_experts_implementation

    config = MODELS["qwen3_moe"]().config
    config.moe_intermediate_size = 256
    theirs = use_experts_implementation(type("Experts", (FP8Experts,), {}))(
        config, block_size=(128, 128)
    )
    weights = {}
    for key in ("gate_up_proj", "down_proj"):
        wide = random(*getattr(theirs, key).shape) / 16
        cast = octofold.quantize(wide, "128x128")
        scale = cast.scale.view(getattr(theirs, f"{key}_scale_inv").shape)
        getattr(theirs, key).data, getattr(theirs, f"{key}_scale_inv").data = cast.data, scale
        weights[key] = ScaledTensor(cast.data, scale, "128x128")
    type(theirs).__module__ = "transformers.integrations.finegrained_fp8"
    mine = nn.convert_experts(theirs).model
    assert type(mine) is nn.Experts
    assert {name: (t.shape, t.dtype) for name, t in mine.state_dict().items()} == {
        name: (t.shape, t.dtype) for name, t in theirs.state_dict().items()
    }
    x, ids = random(9, 256, dtype=BF16), torch.randint(0, 8, (9, 2))
    share = torch.rand(9, 2)
    expected = octofold.experts(x, ids, share, weights["gate_up_proj"], weights["down_proj"])
    assert torch.equal(mine(x, ids, share), expected)


def test_bad_arguments():
    block = block_of("mixtral")
    with pytest.raises(InvalidArgumentError, match="'recipe': expected one whose products are all"):
        nn.convert_experts(block, "rowwise_with_gw_hp")
    with pytest.raises(InvalidArgumentError, match=r"'model': expected a torch\.nn\.Module"):
        nn.convert_experts(None)
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected a function"):
        nn.convert_experts(block, module_filter_fn=1)
    for other in (torch.nn.Linear(8, 8), block.gate):
        with pytest.raises(InvalidArgumentError, match="'model': expected experts that hold"):
            nn.convert_experts(other)
    nn.convert_experts(block)
    with pytest.raises(InvalidArgumentError, match="'model': expected experts that hold"):
        nn.convert_experts(block)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS])
def test_compiles_whole(name):
    torch.compiler.reset()
    block, x = nn.convert_experts(block_of(name)).model, random(2, 40, 256)
    compiled = torch.compile(copy.deepcopy(block), fullgraph=True, backend="aot_eager")
    assert_same(step(compiled, x), step(block, x))
