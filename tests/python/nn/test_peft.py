"""peft's LoRA over layers with FP8 weights: trains, is saved, loaded and merged, or refused."""

import copy
import re
from pathlib import Path

import octofold
import pytest
import torch

from tests.python.casting import GRANULARITIES
from tests.python.nn.layer_support import relative_error, transformers_model

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
import octofold.integrations.peft  # noqa: E402  # tells peft what goes over FP8 weights

pytestmark = pytest.mark.filterwarnings("error:Unsupported layer type:UserWarning")

nn = octofold.nn
PAGE = Path(__file__).parents[3] / "docs" / "older-gpus.md"
TOKENS = torch.arange(24).reshape(2, 12)


def llama():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers_model("llama", **sizes, **heads).bfloat16()


def adapted(granularity="128x128", base=None, **options):
    """A model with LoRA over FP8 weights, whose adapters change what it gives."""
    model = base or nn.convert_weight_only(llama(), granularity).model
    options = {"r": 4, "target_modules": "all-linear"} | options
    model = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.float()


def test_prepared_for_training():
    base = peft.prepare_model_for_kbit_training(nn.convert_weight_only(llama()).model)
    model = adapted(base=base)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad.any() for n, p in model.named_parameters() if "lora_B" in n)


def of_inference(recipe="blockwise"):
    model = llama()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                setattr(parent, name, nn.inference_linear(child, recipe))
    return model


def layers_of(model):
    modules = model.modules()
    return [m for m in modules if isinstance(m._parameters.get("weight"), nn.Fp8Weight)]


def test_the_page_does_as_it_says(tmp_path):
    text = PAGE.read_text().split("## LoRA by peft")[1].split("\n## ")[0]
    names = {"octofold": octofold, "torch": torch, "tokens": TOKENS, "folder": tmp_path}
    names["model"] = llama()
    training, loading = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(training, names)
    before = logits(names["model"].eval())
    losses = names["model"](input_ids=TOKENS, labels=TOKENS).loss.item()
    assert losses < llama()(input_ids=TOKENS, labels=TOKENS).loss.item() - 0.1
    exec(loading, names)
    assert torch.equal(logits(names["model"].eval()), before)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], r".*\.(up|v)_proj"])
def test_gradients_go_through_the_frozen_weight(targets, native):
    model = adapted(base=of_inference() if native else None, target_modules=targets).train()
    every = targets == "all-linear"
    layers = [m for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    assert len(layers) == (14 if every else 4)
    assert type(model.get_base_model().lm_head) is torch.nn.Linear
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * len(layers)
    assert all(p.dtype == torch.float32 and p.grad.abs().max() > 0 for p in trained)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_merging_casts_the_sum_with_the_same_scales(granularity):
    model = adapted(granularity)
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    base = layer.get_base_layer()
    before, apart = base.weight.scaled, logits(model)
    weight = before.dequantize("float32") + layer.get_delta_weight("default").detach()
    model.merge_adapter(safe_merge=True)
    expected = octofold.quantize(weight, granularity)
    assert base.weight.scaled.equals(expected)
    together = logits(model)
    assert relative_error(together, apart) < 0.1
    model.unmerge_adapter()
    assert base.weight.scaled.equals(before)
    assert torch.equal(logits(model), apart)
    alone = copy.deepcopy(model).merge_and_unload()
    assert not any("lora" in name for name, _ in alone.named_modules())
    assert torch.equal(logits(alone), together)


@pytest.mark.parametrize("merged", [False, True])
def test_without_adapters_it_is_the_model_that_was(merged):
    model = adapted()
    if merged:
        model.merge_adapter()
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(nn.convert_weight_only(llama()).model))


def test_merging_what_is_not_finite_changes_nothing():
    model = adapted()
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    layer.lora_A["default"].weight.data[0, 0] = float("nan")
    before = layer.get_base_layer().weight
    with pytest.raises(ValueError, match="not finite"):
        model.merge_adapter()
    assert layer.get_base_layer().weight is before
    assert layer.merged_adapters == []


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_trained_adapters_run_over_inference_linear(recipe, tmp_path):
    adapted().save_pretrained(tmp_path)
    model = of_inference(recipe)
    plain = logits(model)
    model = peft.PeftModel.from_pretrained(model, tmp_path).eval()
    apart = logits(model)
    assert relative_error(plain, apart) > 0.02
    kinds = [repr(layer) for layer in layers_of(model)]
    model = model.merge_and_unload()
    assert [repr(layer) for layer in layers_of(model)] == kinds
    assert relative_error(logits(model), apart) < min(0.1, relative_error(plain, apart))


def test_all_linear_means_experts_and_routers_too():
    model = transformers_model("mixtral").bfloat16()
    nn.convert_experts(model, weights="fp8")
    nn.convert_weight_only(model)
    model = adapted(base=model)
    names = sorted(getattr(module, "parameter_name", "weight") for module in model.modules())
    assert names[:4] == 2 * ["down_proj"] + 2 * ["gate_up_proj"]
    experts = next(m for m in model.modules() if getattr(m, "parameter_name", "") == "down_proj")
    hidden, ids = experts.get_base_layer().down_proj.shape[1], torch.zeros(3, 2, dtype=torch.int32)
    routed = torch.randn(3, hidden).bfloat16(), ids, torch.ones(3, 2)
    assert torch.equal(experts(*routed, adapter_names=None), experts(*routed))
    model.train()(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad.any() for n, p in model.named_parameters() if "lora_B" in n)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"modules_to_save": ["norm", "up_proj"]}, "modules_to_save.*mlp.up_proj.weight'"),
        ({"modules_to_save": ["self_attn"]}, "modules_to_save.*self_attn.q_proj.weight'"),
        ({"target_parameters": ["v_proj.weight"]}, "target_parameters.*v_proj.weight'"),
    ],
)
def test_what_reads_the_weight_is_refused(options, named):
    model = nn.convert_weight_only(llama()).model
    with pytest.raises(octofold.InvalidArgumentError, match=named):
        peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", **options))
