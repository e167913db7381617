"""Saved models with layers in FP8 say what they are: saved by other libraries' save_pretrained,
which gets numbers, and by octofold.models.save, whose folders load to the same bits."""

import copy
import os
import re
import sys
import types

import octofold
import pytest

from tests.python.nn.layer_support import relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from octofold import models, nn  # noqa: E402
from octofold.models.layerwise.layers import StoredLayer  # noqa: E402
from safetensors import SafetensorError  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.python.models.library_models import (  # noqa: E402
    SINES,
    bert,
    flux,
    llama,
    mixture,
    outcome,
    small_llama,
    tied_llama,
    unet,
)

OURS = ("octofold.json", "octofold.safetensors")


def mixed(model):
    """Linear layers of every kind in turns, as a plan of advise() mixes them."""
    kinds = (
        lambda layer: nn.InferenceLinear.from_linear(layer, "blockwise"),
        lambda layer: nn.WeightOnlyLinear.from_linear(layer, "channel"),
        lambda layer: nn.InferenceLinear.from_linear(layer, "rowwise"),
        lambda layer: nn.WeightOnlyLinear.from_linear(layer, "1x128"),
        lambda layer: nn.InferenceLinear.from_linear(layer, "tensorwise"),
        models.CastLinear.from_linear,
        lambda layer: layer,
    )
    linears = [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and not name.endswith(("lm_head", "decoder"))
    ]
    for index, (name, layer) in enumerate(linears):
        model.set_submodule(name, kinds[index % len(kinds)](layer))
    return model


def weight_only(model):
    """All but heads, which may be tied."""
    return nn.convert_weight_only(
        model, module_filter_fn=lambda layer, name: not name.endswith(("lm_head", "decoder"))
    ).model


def e5m2(model):
    return models.enable_layerwise_casting(model, "e5m2", native=False)


def a_part(model):
    """Casts a part of the model, of which the model as a whole knows nothing."""
    (blocks,) = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)][:1]
    models.enable_layerwise_casting(blocks)
    return model


def same_states(model, other):
    """True if both have the same numbers: dequantized, where codes are FP8."""
    ours, theirs = numbers(model), numbers(other)
    assert ours.keys() == theirs.keys()
    return all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        for name in ours
    )


def numbers(model):
    values = {name: value for name, value in model.state_dict().items() if value.element_size() > 1}
    for name, module in model.named_modules():
        if hasattr(module, "wide_weight"):
            values[name] = module.wide_weight(torch.float32)
            values = {key: one for key, one in values.items() if key != f"{name}.weight_scale"}
        elif hasattr(module, "scaled_weight"):
            weight = module.scaled_weight
            assert isinstance(weight, octofold.ScaledTensor)
            values[name] = weight.dequantize("float32")
    return values


CHANGES = [models.enable_layerwise_casting, mixed, weight_only, a_part, e5m2]


def made(make, change):
    """A changed model, its inputs and what it answers."""
    model, inputs = make()
    model = change(model)
    return model, inputs, outcome(model, inputs)


def loaded(kind, folder):
    """By its library, which must find a place for everything."""
    dtype = {"torch_dtype": torch.bfloat16} if hasattr(kind, "load_config") else {"dtype": "auto"}
    model, found = kind.from_pretrained(folder, output_loading_info=True, **dtype)
    assert not found["unexpected_keys"]
    assert not found["missing_keys"]
    return model


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
    assert any(value.dtype.itemsize == 1 for value in after.values())
    assert all(torch.equal(bits(after[name]), bits(value)) for name, value in before.items())


def bits(value):
    return value.reshape(-1).view(torch.uint8)


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
    wide_weight = StoredLayer.wide_weight
    monkeypatch.setattr(
        StoredLayer,
        "wide_weight",
        lambda layer, dtype: made_wide.append(layer.weight.shape) or wide_weight(layer, dtype),
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


@pytest.mark.parametrize("change", CHANGES)
def test_state_dict_and_torch_save_keep_codes(change, tmp_path):
    model, inputs, y = made(llama, change)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = change(llama(seed=1)[0])
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(outcome(other, inputs), y)


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


@pytest.mark.parametrize("change", CHANGES)
def test_wide_state_dict_is_what_plain_models_load(change):
    model, inputs, y = made(llama, change)
    with nn.wide_state_dict(model):
        state = model.state_dict()
    plain = llama(seed=1)[0]
    plain.load_state_dict(state)
    assert all(value.dtype == torch.bfloat16 for value in state.values())
    assert relative_error(outcome(plain, inputs), y) < (0.06 if change is mixed else 0.02)
    assert any(value.dtype.itemsize == 1 for value in model.state_dict().values())


def test_nobody_looks_who_asks_for_a_state_dict():
    """A function of the user's by the name of the libraries' gets codes like everybody else."""

    def save_pretrained(model):
        return model.state_dict()

    layer = nn.WeightOnlyLinear.from_linear(torch.nn.Linear(128, 128))
    assert save_pretrained(layer)["weight"].dtype == torch.float8_e4m3fn
    with nn.wide_state_dict(layer):
        assert save_pretrained(layer)["weight"].dtype == torch.float32
        wrong = nn.wide_state_dict("layer")
        with (
            pytest.raises(octofold.InvalidArgumentError, match=r"'model': .*Module, got str"),
            wrong,
        ):
            raise AssertionError
    with pytest.raises(KeyError), nn.wide_state_dict(layer):
        raise KeyError
    assert save_pretrained(layer).keys() == {"weight", "weight_scale_inv", "bias"}


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
    assert torch.equal(weight, model.linear.scaled_weight.dequantize("float32"))


class Writer(torch.nn.Module):
    """A library's base of models."""

    def save_pretrained(self):
        return self.state_dict()


def test_libraries_that_come_late_or_change(monkeypatch):
    from octofold.nn.layers import patching, saving

    name = "a_library.models"
    layer = nn.WeightOnlyLinear.from_linear(torch.nn.Linear(128, 128))
    monkeypatch.setitem(patching.PATCHES, "a row", ("a_library", f"{name}.Model", ""))
    monkeypatch.setattr(saving, "_waiting", {"a row"})
    library = types.ModuleType(name)
    library.Model = type("Model", (Writer,), {"save_pretrained": Writer.save_pretrained})
    monkeypatch.setitem(sys.modules, name, library)
    model = library.Model()
    model.layer = layer
    with pytest.warns(UserWarning, match=r"a row: imported after .* call it again"):
        assert model.save_pretrained()["layer.weight"].dtype == torch.float8_e4m3fn
    assert model.save_pretrained()["layer.weight"].dtype == torch.float32

    monkeypatch.setitem(patching.PATCHES, "a row", ("a_library", f"{name}.Other", ""))
    monkeypatch.setattr(saving, "_waiting", {"a row"})
    expected = r"a_library\.models\.Other has no save_pretrained.*, in a_library of unknown version"
    with pytest.raises(octofold.UnavailableError, match=expected):
        nn.WeightOnlyLinear(128, 128)


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
        layer = modules[name.removesuffix(".weight")]
        stored = hasattr(layer, "wide_weight")
        wide = layer.wide_weight(torch.float32) if stored else layer.scaled_weight.dequantize()
        assert torch.equal(checkpoint[name].dequantize(), wide)


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
    layer = nn.WeightOnlyLinear.from_linear(torch.nn.Linear(128, 64, dtype=torch.bfloat16))
    models.save(layer, tmp_path / "layer")
    x = torch.randn(3, 128).bfloat16()
    other = models.load(torch.nn.Linear(128, 64), tmp_path / "layer")
    assert type(other) is nn.WeightOnlyLinear
    assert torch.equal(other(x), layer(x))

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


def test_what_is_batch_invariant_stays_so(tmp_path):
    linear = torch.nn.Linear(128, 64, dtype=torch.bfloat16)
    for invariant in (False, True):
        layer = nn.WeightOnlyLinear.from_linear(linear, batch_invariant=invariant)
        models.save(layer, tmp_path / str(invariant))
        other = models.load(torch.nn.Linear(128, 64), tmp_path / str(invariant))
        assert other.batch_invariant is invariant


def test_a_plan_is_kept(tmp_path):
    """A model that apply() made is kept, without the plan and the original."""
    model, inputs = llama()
    plan = models.advise(model, inputs, "bytes", max_error=0.2, effects=False)
    assert plan.changed
    models.apply(model, plan)
    models.save(model, tmp_path / "kept")
    other = models.load(type(model), tmp_path / "kept")
    assert torch.equal(outcome(other, inputs), outcome(model, inputs))


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

    class Mine(nn.WeightOnlyLinear):
        pass

    with pytest.raises(wrong, match=r"'model': expected layers of .*Mine, which a file cannot"):
        models.save(Mine(128, 128), tmp_path / "new")

    (tmp_path / "empty").mkdir()
    kept = models.save(model, tmp_path / "empty")
    any_class = pytest.importorskip("transformers").AutoModelForCausalLM
    again = models.load(any_class, str(kept))
    assert type(again) is type(model)
    assert torch.equal(outcome(again, inputs), y)
    with pytest.raises(wrong, match="'model': expected a model as its class makes it, got Weight"):
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
            lambda text: text.replace("WeightOnlyLinear", "X"),
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
