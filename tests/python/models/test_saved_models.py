"""Folders of octofold.models.save load to the same bits, and say what they are."""

import re

import octofold
import pytest
import torch
from octofold import models, nn
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tests.python.models.library_models import (
    CHANGES,
    SINES,
    bert,
    e5m2,
    flux,
    llama,
    loaded,
    made,
    mixed,
    mixture,
    outcome,
    same_states,
    small_llama,
    tied_llama,
    unet,
    weight_only,
)
from tests.python.nn.layer_support import relative_error

OURS = ("octofold.json", "octofold.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [tied_llama, small_llama, bert, mixture, *SINES, flux, unet])
def test_saves_and_loads_the_same(make, change, tmp_path):
    model, inputs, y = made(make, change)
    assert models.save(model, tmp_path / "kept") == tmp_path / "kept"
    for instance in (type(model), make(seed=1)[0]):
        other = models.load(instance, tmp_path / "kept")
        assert torch.equal(outcome(other, inputs), y)
        assert same_states(model, other)
        kinds = [[type(one) for one in each.modules()] for each in (model, other)]
        assert kinds[0] == kinds[1]
        assert not other.training
    assert torch.equal(outcome(model, inputs), y)


@pytest.mark.slow
@pytest.mark.parametrize("change", [models.enable_layerwise_casting, mixed, weight_only])
@pytest.mark.parametrize("make", [llama, tied_llama, bert, mixture])
def test_others_read_models_of_transformers(make, change, tmp_path):
    """transformers casts inputs as the config says, on the CPU too."""
    pytest.importorskip("compressed_tensors")
    model, inputs, y = made(make, change)
    folder = models.save(model, tmp_path / "kept")
    assert not (folder / OURS[1]).exists()
    assert relative_error(outcome(loaded(type(model), folder), inputs), y) < 0.1

    checkpoint = octofold.load_checkpoint(folder)
    assert checkpoint.family == "compressed-tensors"
    modules = dict(model.named_modules())
    names = [name for name in checkpoint if checkpoint.weight(name) is not None]
    assert len(names) > 3
    for name in names:
        weight = modules[name.removesuffix(".weight")].weight
        assert torch.equal(checkpoint[name].dequantize(), weight.dequantize(torch.float32))


@pytest.mark.parametrize(
    ("make", "change", "reason"),
    [
        (small_llama, weight_only, "sizes .64, 64. are no multiples of 128"),
        (llama, e5m2, "its codes are e5m2"),
        (lambda: (llama()[0].half(), {}), models.enable_layerwise_casting, "exact in float16"),
        (flux, weight_only, None),
    ],
)
def test_from_pretrained_finds_no_weights_in_what_is_ours(make, change, reason, tmp_path, log):
    model = change(make()[0])
    models.save(model, tmp_path / "kept")
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {*OURS, "config.json"}
    with pytest.raises(OSError, match="no file named"):
        type(model).from_pretrained(tmp_path / "kept")
    if reason is not None:
        text = next(one for one in log if "for octofold.models.load() alone" in one)
        assert re.search(reason, text)


def test_any_module_is_kept(tmp_path):
    """Without a config, of no library: a layer alone, and one that stands in two places."""
    linear, x = torch.nn.Linear(128, 64, dtype=torch.bfloat16), torch.randn(3, 128).bfloat16()
    layers = nn.weight_only_linear(linear), nn.inference_linear(linear, "rowwise", few_tokens=2)
    layers += (nn.weight_only_linear(linear, batch_invariant=True),)
    for index, layer in enumerate(layers):
        models.save(layer, tmp_path / f"layer {index}")
        other = models.load(torch.nn.Linear(128, 64), tmp_path / f"layer {index}")
        assert repr(other) == repr(layer)
        assert other.weight.batch_invariant is layer.weight.batch_invariant
        assert torch.equal(other(x), layer(x))

    linear = torch.nn.Linear(128, 64)
    models.save(models.enable_layerwise_casting(linear, "e5m2"), tmp_path / "casting")
    other = models.load(torch.nn.Linear(128, 64), tmp_path / "casting")
    assert repr(other) == repr(linear)
    assert torch.equal(other(x), linear(x))
    for one in (linear, other):
        models.disable_layerwise_casting(one)
        assert one.weight.requires_grad
    assert torch.equal(other.weight, linear.weight)

    def with_views():
        module = torch.nn.Linear(128, 4)
        module.register_buffer("whole", torch.arange(6.0).reshape(3, 2))
        module.register_buffer("part", module.whole[1:])
        module.register_buffer("first", module.whole[:1])
        return module

    models.save(with_views(), tmp_path / "views")
    state = models.load(with_views(), tmp_path / "views").state_dict()
    assert state["part"].tolist() == [[2, 3], [4, 5]]
    assert state["first"].tolist() == [[0, 1]]

    def twice():
        linear = torch.nn.Linear(128, 128, dtype=torch.bfloat16)
        return torch.nn.Sequential(linear, torch.nn.ReLU(), linear, torch.nn.Linear(128, 8))

    model = nn.convert_weight_only(twice()).model
    models.save(model, tmp_path / "twice")
    other = models.load(twice(), tmp_path / "twice")
    assert other[0] is other[2]
    with pytest.raises(
        octofold.InvalidArgumentError, match="'model': expected a model, or a class"
    ):
        models.load(torch.nn.Sequential, tmp_path / "twice")


def test_refuses_and_leaves_all_as_it_was(tmp_path):
    model, inputs, y = made(llama, weight_only)
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    wrong = octofold.InvalidArgumentError
    for folder, message in ((full, "new or empty folder, got .*which has"), (3, "a path")):
        with pytest.raises(
            wrong, match=f"'folder': expected {message}" if folder == 3 else message
        ):
            models.save(model, folder)
    assert [path.name for path in full.iterdir()] == ["file"]
    with pytest.raises(wrong, match=r"'model': expected a torch\.nn\.Module, got int"):
        models.save(3, tmp_path / "new")

    (tmp_path / "empty").mkdir()
    kept = models.save(model, tmp_path / "empty")
    any_class = pytest.importorskip("transformers").AutoModelForCausalLM
    again = models.load(any_class, str(kept))
    assert type(again) is type(model)
    assert torch.equal(outcome(again, inputs), y)
    with pytest.raises(wrong, match="'model': expected a model as its class makes it, got Linear"):
        models.load(model, kept)
    smaller, inputs_of_smaller = small_llama()
    before = outcome(smaller, inputs_of_smaller)
    with pytest.raises(wrong, match=r"'model': expected '.*' of \[\d+, \d+\], as was saved"):
        models.load(smaller, kept)
    assert torch.equal(outcome(smaller, inputs_of_smaller), before)
    with pytest.raises(wrong, match=r"'model': expected a layer 'model\.layers\.0"):
        models.load(torch.nn.Linear(3, 3), kept)
    with pytest.raises(wrong, match=r"'model': expected a torch\.nn\.Module or its class, got str"):
        models.load("model", kept)
    with pytest.raises(FileNotFoundError, match=r"models.save\(\) wrote: cannot open"):
        models.load(type(model), tmp_path / "absent")
    assert torch.equal(outcome(model, inputs), y)


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model, _, _ = made(llama, weight_only)
    errors = [OSError(28, "No space left"), SafetensorError("No space left (os error 28)")]

    def failing(*arguments, **options):
        raise errors.pop()

    monkeypatch.setattr("safetensors.torch.save_file", failing)
    monkeypatch.setattr(type(model), "save_pretrained", failing)
    for change in (lambda model: model, torch.nn.Sequential):
        with pytest.raises(octofold.IoError, match=r"cannot write .*No space left"):
            models.save(change(model), tmp_path / "kept")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-9], "octofold.json: expected JSON"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "'format': expected 1, got 2"),
        (lambda text: text.replace('"layers"', '"l"'), "'layers': expected an object, got None"),
        (
            lambda text: text.replace("Fp8Weight", "X"),
            "layer 'model.*of Octofold, got .*'X'",
        ),
        (lambda text: text.replace("128x128", "tensor"), "expected FP8 with tensor scales"),
    ],
)
def test_damaged_records(damage, message, tmp_path):
    model, _, _ = made(llama, weight_only)
    file = models.save(model, tmp_path / "kept") / OURS[0]
    file.write_text(damage(file.read_text()))
    with pytest.raises(octofold.BadFormatError, match=message):
        models.load(type(model), tmp_path / "kept")


def test_damaged_weights(tmp_path):
    model, _, _ = made(llama, weight_only)
    kept = models.save(model, tmp_path / "kept")
    (file,) = kept.glob("*.safetensors")
    state = load_file(file)
    norm = state.pop("model.norm.weight")
    for change, message in (
        ({}, "expected the names of the model that was saved, got one with 'model.norm.weight'"),
        ({"model.norm.weight": norm, "more": norm.clone()}, "was saved, got one without more"),
    ):
        save_file({**state, **change}, file)
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            models.load(type(model), kept)
    file.write_bytes(b"none")
    with pytest.raises(octofold.BadFormatError, match="expected a safetensors file"):
        models.load(type(model), kept)
