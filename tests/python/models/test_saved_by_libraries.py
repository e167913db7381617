"""Models with layers in FP8 that other libraries save: save_pretrained() writes numbers, which any
library loads, and state_dict() gives codes except in wide_state_dict()."""

import copy
import sys
import types

import octofold
import pytest
import torch
from octofold import models, nn
from safetensors.torch import load_file

from tests.python.models.library_models import (
    CHANGES,
    bert,
    flux,
    llama,
    loaded,
    made,
    mixed,
    mixture,
    outcome,
    same_states,
    tied_llama,
    unet,
    weight_only,
)
from tests.python.nn.layer_support import relative_error


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [llama, tied_llama, bert, mixture, flux, unet])
def test_save_pretrained_writes_numbers(make, change, tmp_path):
    model, inputs, y = made(make, change)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    other = loaded(type(model), tmp_path)
    assert relative_error(outcome(other, inputs), y) < (0.06 if change is mixed else 0.02)
    assert {parameter.dtype for parameter in other.parameters()} == {torch.bfloat16}
    # The model is what it was: with codes, also in its state_dict().
    assert torch.equal(outcome(model, inputs), y)
    after = model.state_dict()
    assert any(value.element_size() == 1 for value in after.values())
    assert all(torch.equal(bits(after[name]), bits(value)) for name, value in before.items())


def bits(value):
    codes = value.codes if isinstance(value, nn.Fp8Weight) else value
    return codes.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("change", [models.enable_layerwise_casting, weight_only])
def test_whatever_calls_save_pretrained(change, tmp_path):
    """A library around transformers, shards, copies, pickles, and files of torch."""
    diffusers = pytest.importorskip("diffusers")
    model, inputs, y = made(llama, change)

    class Sentences(torch.nn.Module):  # as sentence-transformers has it
        def __init__(self, inner):
            super().__init__()
            self.auto_model = inner

        def save(self, path):
            self.auto_model.save_pretrained(path, max_shard_size="100KB")

    Sentences(model).save(tmp_path / "a")
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 1
    copy.deepcopy(model).save_pretrained(tmp_path / "b")
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    again.save_pretrained(tmp_path / "c")
    for name in "abc":
        assert relative_error(outcome(loaded(type(model), tmp_path / name), inputs), y) < 0.02

    model, inputs, y = made(flux, change)
    model.save_pretrained(tmp_path / "d", safe_serialization=False)
    other = diffusers.FluxTransformer2DModel.from_pretrained(
        tmp_path / "d", torch_dtype=torch.bfloat16, use_safetensors=False
    )
    assert relative_error(outcome(other, inputs), y) < 0.02


@pytest.mark.parametrize("own", [True, False])
def test_adapters_are_saved_alone(own, tmp_path, monkeypatch):
    """By peft and by transformers, without making all weights in 16 bits; but the embedding and
    the head are numbers, which peft saves too where it is asked to."""
    peft = pytest.importorskip("peft")
    model, inputs, _ = made(llama, models.enable_layerwise_casting)
    lora = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    if own:
        model.add_adapter(lora)
    else:
        model = peft.get_peft_model(model, lora)
    y = outcome(model, inputs)
    made_wide = []
    numbers = nn.Fp8Weight.dequantize
    monkeypatch.setattr(
        nn.Fp8Weight,
        "dequantize",
        lambda weight, dtype=None: made_wide.append(weight.codes.shape) or numbers(weight, dtype),
    )
    model.save_pretrained(tmp_path, **({} if own else {"save_embedding_layers": True}))
    assert made_wide == [(128, 128)] * 2
    state = load_file(tmp_path / "adapter_model.safetensors")
    assert {value.dtype.itemsize for value in state.values()} <= {2, 4}
    assert len(state) == (2 if own else 4)

    other = models.enable_layerwise_casting(llama()[0])
    other = peft.PeftModel.from_pretrained(other, tmp_path)
    assert relative_error(outcome(other, inputs), y) < 0.02
    with other.disable_adapter():
        assert relative_error(outcome(other, inputs), y) > 0.05


def test_casting_saves_and_is_undone(tmp_path):
    """Files of save_pretrained have what disabling leaves, in the dtype that the weights had."""
    model = models.enable_layerwise_casting(llama()[0].float())
    model.save_pretrained(tmp_path)
    models.disable_layerwise_casting(model)
    other = loaded(type(model), tmp_path)
    assert other.dtype == torch.float32
    assert same_states(model, other)


def test_what_is_offloaded_is_refused(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model, _, _ = made(llama, models.enable_layerwise_casting)
    accelerate.cpu_offload(model, execution_device="cpu")
    expected = r"remove_hook_from_submodules.*weight' on meta"
    with pytest.raises(octofold.InvalidArgumentError, match=f"save_pretrained.*{expected}"):
        model.save_pretrained(tmp_path / "a")
    with pytest.raises(octofold.InvalidArgumentError, match=f"models.save: .*{expected}"):
        models.save(model, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_nobody_looks_who_asks_for_a_state_dict():
    """A function of the user's by the name of the libraries' gets what everybody else does."""

    def save_pretrained(model):
        return model.state_dict()

    layer = nn.weight_only_linear(torch.nn.Linear(128, 128))
    assert isinstance(save_pretrained(layer)["weight"], nn.Fp8Weight)
    with nn.wide_state_dict(layer):
        assert type(save_pretrained(layer)["weight"]) is torch.Tensor
        wrong = nn.wide_state_dict("layer")
        with (
            pytest.raises(octofold.InvalidArgumentError, match=r"'model': .*Module, got str"),
            wrong,
        ):
            raise AssertionError
    with pytest.raises(KeyError), nn.wide_state_dict(layer):
        raise KeyError
    assert isinstance(save_pretrained(layer)["weight"], nn.Fp8Weight)


def test_save_is_the_same_in_wide_state_dict(tmp_path):
    model, inputs, y = made(llama, weight_only)
    with nn.wide_state_dict(model):
        models.save(model, tmp_path / "kept")
    assert torch.equal(outcome(models.load(type(model), tmp_path / "kept"), inputs), y)


def test_codes_that_are_handed_over_are_refused(tmp_path):
    model, inputs, y = made(llama, weight_only)
    expected = r"'state_dict': expected numbers.*wide_state_dict\(model\), got FP8 codes as 'model"
    for given in ((True, model.state_dict()), ()):
        named = {} if given else {"state_dict": model.state_dict()}
        with pytest.raises(octofold.InvalidArgumentError, match=expected):
            model.save_pretrained(tmp_path / "a", *given, **named)
    assert not (tmp_path / "a").exists()
    with nn.wide_state_dict(model):
        state = model.state_dict()
    model.save_pretrained(tmp_path / "b", state_dict=state)
    assert relative_error(outcome(loaded(type(model), tmp_path / "b"), inputs), y) < 0.02


def test_mixins_of_the_hub(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Mine(torch.nn.Module, hub.PyTorchModelHubMixin):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(128, 128)

    model = nn.convert_weight_only(Mine()).model
    model.save_pretrained(tmp_path)
    weight = Mine.from_pretrained(tmp_path).linear.weight
    assert torch.equal(weight, model.linear.weight.scaled.dequantize("float32"))


class Writer(torch.nn.Module):
    """A library's base of models."""

    def save_pretrained(self):
        return self.state_dict()


def test_libraries_that_come_late_or_change(monkeypatch):
    from octofold.nn.layers import patching, saving

    name = "a_library.models"
    monkeypatch.setitem(patching.PATCHES, "a row", ("a_library", f"{name}.Model", ""))
    monkeypatch.setattr(saving, "_waiting", {"a row"})
    library = types.ModuleType(name)
    library.Model = type("Model", (Writer,), {"save_pretrained": Writer.save_pretrained})
    monkeypatch.setitem(sys.modules, name, library)
    model = library.Model()
    model.layer = nn.weight_only_linear(torch.nn.Linear(128, 128))
    assert type(model.save_pretrained()["layer.weight"]) is torch.Tensor

    monkeypatch.setitem(patching.PATCHES, "a row", ("a_library", f"{name}.Other", ""))
    monkeypatch.setattr(saving, "_waiting", {"a row"})
    expected = r"a_library\.models\.Other has no save_pretrained.*, in a_library of unknown version"
    with pytest.raises(octofold.UnavailableError, match=expected):
        nn.weight_only_linear(torch.nn.Linear(128, 128))
