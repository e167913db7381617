"""Layerwise casting of other libraries' models: small ones with random weights, and with their
adapters and hooks."""

import copy

import octofold
import pytest
import torch
from octofold import models
from octofold.nn import Fp8Weight

from tests.python.models.library_models import autoencoder, flux, llama, outcome, unet
from tests.python.nn.layer_support import relative_error

pytestmark = pytest.mark.slow


def stored_names(model):
    return {
        name
        for name, one in model.named_modules()
        if isinstance(one._parameters.get("weight"), Fp8Weight)
    }


@pytest.mark.parametrize("make", [flux, unet, autoencoder])
def test_diffusers_models(make):
    """The layers that Diffusers' own casting picks, its dtype, and no more error."""
    hooks = pytest.importorskip("diffusers.hooks.layerwise_casting")
    model, inputs = make()
    expected, plain = outcome(model, inputs), copy.deepcopy(model)

    peer = copy.deepcopy(model)
    peer.enable_layerwise_casting()
    theirs = relative_error(outcome(peer, inputs), expected)
    picked = {
        name
        for name, one in peer.named_modules()
        if hasattr(one, "_diffusers_hook")
        and one._diffusers_hook.get_hook(hooks._LAYERWISE_CASTING_HOOK) is not None
    }

    models.enable_layerwise_casting(model)
    assert stored_names(model) == picked
    assert model.dtype == torch.bfloat16
    y = outcome(model, inputs)
    assert y.dtype == torch.bfloat16
    error = relative_error(y, expected)
    assert 1e-3 < error < 1.25 * theirs < 0.25
    codes = {key for key, value in model.state_dict().items() if value.element_size() == 1}
    assert codes == {f"{name}.weight" for name in picked}
    models.disable_layerwise_casting(model)
    assert [type(one) for one in model.modules()] == [type(one) for one in plain.modules()]
    assert relative_error(outcome(model, inputs), y) < 3e-2  # products of another kernel


@pytest.mark.parametrize("options", [{}, {"autocast_adapter_dtype": False}])
@pytest.mark.parametrize("first", ["adapters", "casting"])
def test_adapters(first, options):
    peft = pytest.importorskip("peft")
    model, inputs = llama()
    plain = outcome(model, inputs)
    lora = peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=4)
    steps = [
        lambda model: peft.get_peft_model(model, lora, **options),
        lambda model: models.enable_layerwise_casting(model),
    ]
    for step in steps if first == "adapters" else reversed(steps):
        model = step(model)
    adapters = {name: one for name, one in model.named_parameters() if "lora_" in name}
    dtype = torch.bfloat16 if options else torch.float32
    assert {one.dtype for one in adapters.values()} == {dtype}
    assert len(adapters) == 4
    base = model.base_model.model.model.layers[0]
    assert type(base.self_attn.q_proj.base_layer.weight) is Fp8Weight
    assert type(base.self_attn.k_proj.weight) is Fp8Weight
    assert len(stored_names(model)) == 9

    y = outcome(model, inputs)
    assert 1e-3 < relative_error(y, plain) < 0.1
    for name, one in adapters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(one, std=0.5)
    assert relative_error(outcome(model, inputs), y) > 0.01
    with model.disable_adapter():
        assert torch.equal(outcome(model, inputs), y)
    model(**inputs).logits.float().square().sum().backward()
    assert all(one.grad is not None and one.grad.norm() > 0 for one in adapters.values())
    wanted = {name for name, one in model.named_parameters() if one.requires_grad}
    assert wanted == set(adapters)

    y = outcome(model, inputs)
    models.disable_layerwise_casting(model)
    assert type(base.self_attn.q_proj.base_layer) is torch.nn.Linear
    assert relative_error(outcome(model, inputs), y) < 1e-2


def test_adapters_of_convolutions_get_gradients():
    peft = pytest.importorskip("peft")
    model, inputs = unet()
    model.requires_grad_(False)
    models.enable_layerwise_casting(model)
    model.add_adapter(peft.LoraConfig(target_modules=["conv1", "to_q"], r=2))
    adapters = [one for name, one in model.named_parameters() if "lora_" in name]
    assert {one.dtype for one in adapters} == {torch.bfloat16}
    model(**inputs)[0].float().square().sum().backward()
    assert all(one.grad is not None for one in adapters)


@pytest.mark.parametrize("offload_buffers", [False, True])
@pytest.mark.parametrize("first", ["hooks", "casting"])
def test_offloading(first, offload_buffers):
    """To `meta`, from where accelerate's hooks bring each layer for its forward."""
    accelerate = pytest.importorskip("accelerate")
    model, inputs = llama()
    expected = outcome(models.enable_layerwise_casting(copy.deepcopy(model)), inputs)
    if first == "hooks":  # that do not offload: weights have to be there to be cast
        accelerate.hooks.attach_align_device_hook(model, execution_device="cpu")
    models.enable_layerwise_casting(model)
    if first == "casting":
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=offload_buffers)
        weight = model.model.layers[0].mlp.up_proj.weight
        assert weight.device.type == "meta"
        assert weight.codes.is_meta
        with pytest.raises(octofold.InvalidArgumentError, match="on meta"):
            models.disable_layerwise_casting(model)
    for _ in range(2):
        assert torch.equal(outcome(model, inputs), expected)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(outcome(model, inputs), expected)
    models.disable_layerwise_casting(model)
    assert relative_error(outcome(model, inputs), expected) < 1e-2


def test_hooks_stay_when_casting_goes():
    accelerate = pytest.importorskip("accelerate")
    model, inputs = llama()
    models.enable_layerwise_casting(model)
    accelerate.hooks.attach_align_device_hook(model, execution_device="cpu")
    models.disable_layerwise_casting(model)
    y = outcome(model, inputs)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(outcome(model, inputs), y)
