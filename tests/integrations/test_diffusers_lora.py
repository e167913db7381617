"""LoRA over models that the plug into Diffusers has made, by Diffusers' own functions."""

import copy

import diffusers
import peft
import pytest
import torch
from octofold import nn
from octofold.integrations.peft.layers import Fp8LoraLinear

from tests.integrations.diffusers_models import BF16
from tests.integrations.diffusers_models import loaded as loaded_with
from tests.integrations.support import fp8_layers
from tests.python.models.library_models import outcome
from tests.python.nn.layer_support import relative_error

Flux = diffusers.FluxTransformer2DModel
TARGETS = ("transformer_blocks.0.attn.to_q", "single_transformer_blocks.1.proj_out")
RANK = 4


@pytest.fixture
def inputs(plain):
    return plain[1]


@pytest.fixture
def folder(plain):
    return plain[2]


def loaded(folder, compute):
    return loaded_with(folder, compute=compute)


def adapter(model, targets=TARGETS, seed=1):
    """The adapter as files of Diffusers have it: names from the model on."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name in targets:
        layer = model.get_submodule(name)
        first = torch.randn(RANK, layer.in_features, generator=generator)
        second = torch.randn(layer.out_features, RANK, generator=generator)
        state[f"transformer.{name}.lora_A.weight"] = (first * layer.in_features**-0.5).to(BF16)
        state[f"transformer.{name}.lora_B.weight"] = (second * 1.2).to(BF16)
    return state


def with_deltas(model, state, scale=1.0):
    """The model in BF16 of the same numbers, adapters added to its weights in FP64."""
    wide = copy.deepcopy(model)
    wide.dequantize()
    for name in TARGETS:
        first = state[f"transformer.{name}.lora_A.weight"].double()
        second = state[f"transformer.{name}.lora_B.weight"].double()
        weight = wide.get_submodule(name).weight
        weight.data = (weight.double() + scale * second @ first).to(BF16)
    return wide


@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("low_cpu_mem_usage", [False, True])
def test_adapters_load_run_and_go(folder, inputs, compute, low_cpu_mem_usage):
    model = loaded(folder, compute)
    state, before = adapter(model), outcome(model, inputs)
    model.load_lora_adapter(dict(state), adapter_name="one", low_cpu_mem_usage=low_cpu_mem_usage)
    for name in TARGETS:
        layer = model.get_submodule(name)
        assert type(layer) is Fp8LoraLinear
        assert type(layer.base_layer.weight) is nn.Fp8Weight
        assert layer.lora_A["one"].weight.dtype == BF16
    y = outcome(model, inputs)
    assert relative_error(y, before) > 0.05
    limit = 0.06 if compute == "native" else 0.01
    for scale in (1.0, 0.5):
        model.set_adapters("one", scale)
        wide = outcome(with_deltas(loaded(folder, compute), state, scale), inputs)
        assert relative_error(outcome(model, inputs), wide) < limit
    model.disable_lora()
    assert torch.equal(outcome(model, inputs), before)
    model.enable_lora()
    model.set_adapters("one", 1.0)
    assert torch.equal(outcome(model, inputs), y)
    model.unload_lora()
    assert type(model.get_submodule(TARGETS[0])) is torch.nn.Linear
    assert torch.equal(outcome(model, inputs), before)


def codes(model):
    layers = fp8_layers(model).items()
    return {name: one.weight.codes.view(torch.uint8).clone() for name, one in layers}


@pytest.mark.parametrize("compute", ["native", "weight-only"])
def test_adapters_are_trained(folder, inputs, tmp_path, compute):
    model = loaded(folder, compute)
    assert model.hf_quantizer.is_trainable
    model.requires_grad_(False)
    config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["to_q", "to_v", "proj_out"])
    model.add_adapter(config)
    trained = [one for one in model.parameters() if one.requires_grad]
    assert len(trained) == 2 * (2 * 3 + 3)  # the output, which is not in FP8, too
    before = codes(model)
    target = torch.randn_like(inputs["hidden_states"])
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    losses = []
    for _ in range(8):
        loss = (model(**inputs)[0] - target).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    after = codes(model)
    assert all(torch.equal(before[name], after[name]) for name in before)

    y = outcome(model, inputs)
    # Diffusers' save_lora_adapter() refuses every quantized model: it asks for .to(dtype=None).
    state = peft.get_peft_model_state_dict(model)
    assert len(state) == len(trained)
    diffusers.FluxPipeline.save_lora_weights(tmp_path, transformer_lora_layers=state)
    again = loaded(folder, compute)
    again.load_lora_adapter(tmp_path, weight_name="pytorch_lora_weights.safetensors")
    assert torch.equal(outcome(again, inputs), y)


@pytest.mark.parametrize("config", [peft.LoKrConfig, peft.LoHaConfig])
def test_other_adapters_are_trained(folder, inputs, config):
    model = loaded(folder, "weight-only")
    model.add_adapter(config(target_modules=["to_q"]))
    model(**inputs)[0].sum().backward()
    assert all(one.grad is not None for one in model.parameters() if one.requires_grad)


def test_models_without_fp8_layers_have_peft_as_it_is(folder):
    plain = Flux.from_pretrained(folder, torch_dtype=BF16)
    plain.load_lora_adapter(adapter(plain), adapter_name="one")
    assert type(plain.get_submodule(TARGETS[0])) is peft.tuners.lora.Linear
    assert isinstance(
        peft.get_peft_model(
            torch.nn.Sequential(torch.nn.Linear(8, 8)), peft.LoraConfig(target_modules=["0"])
        ).base_model,
        peft.LoraModel,
    )
