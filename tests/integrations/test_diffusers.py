"""The quantizer for Diffusers, with Diffusers itself: models loaded in FP8, saved, or refused."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import diffusers
import octofold
import pytest
import torch
from diffusers.quantizers.bfl.utils import quantize_fp8r
from octofold.integrations.diffusers import OctofoldConfig
from octofold.integrations.diffusers.bfl import bundled, codes_and_scale, is_bundle
from octofold.nn.layers.saving import coded_state_dict
from safetensors.torch import load_file, save_file

from tests.integrations.diffusers_models import BF16, flux, large, loaded, saved
from tests.integrations.support import fp8_layers, same_bits
from tests.python.models.library_models import of_matrix, outcome
from tests.python.nn.layer_support import relative_error

Flux = diffusers.FluxTransformer2DModel


@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("format", ["128x128", "channel", "tensor", "e5m2 channel"])
def test_weights_are_cast_as_by_the_layers(plain, format, compute):
    model, inputs, folder = plain
    quantized = loaded(folder, format=format, compute=compute)
    layers = fp8_layers(quantized)
    assert {layer.weight.compute for layer in layers.values()} == {compute}
    for name, layer in layers.items():
        linear = model.get_submodule(name)
        expected = octofold.quantize(linear.weight.detach(), format)
        found = layer.weight.scaled
        assert found.equals(expected)
        x = torch.randn(7, layer.in_features, dtype=BF16)
        wanted = x.double() @ found.dequantize("float32").double().T + linear.bias.double()
        with torch.no_grad():
            error = relative_error(layer(x), wanted)
        assert error < (5e-3 if compute == "weight-only" else 0.04)
        assert compute == "weight-only" or error > 5e-3  # x is rounded to FP8
    error = relative_error(outcome(quantized, inputs), outcome(model, inputs))
    assert 1e-3 < error < (0.12 if "e5m2" in format else 0.06)


def test_default_is_what_casting_of_diffusers_picks(plain):
    model, _, folder = plain
    peer = copy.deepcopy(model)
    peer.enable_layerwise_casting()
    picked = {
        name
        for name, one in peer.named_modules()
        if isinstance(one, torch.nn.Linear)
        and hasattr(one, "_diffusers_hook")
        and one._diffusers_hook.get_hook("layerwise_casting") is not None
    }
    assert set(fp8_layers(loaded(folder))) == picked
    assert "single_transformer_blocks.0.proj_out" in picked
    assert "proj_out" not in picked


def test_modules_to_not_convert(plain):
    *_, folder = plain
    linears = {name for name, one in plain[0].named_modules() if type(one) is torch.nn.Linear}
    assert set(fp8_layers(loaded(folder, modules_to_not_convert=[]))) == linears
    names = ["single_transformer_blocks.1", r".*\.to_q", "norm1"]
    layers = set(fp8_layers(loaded(folder, modules_to_not_convert=names)))
    kept = {
        name
        for name in linears
        if name.startswith("single_transformer_blocks.1.")
        or name.endswith(".to_q")
        or ".norm1." in name
    }
    assert layers == linears - kept
    assert len(kept) > 8


@pytest.mark.parametrize("make", [flux, *map(of_matrix, ("SD3", "Wan", "UNet"))])
@pytest.mark.parametrize("compute", ["native", "weight-only"])
@pytest.mark.parametrize("names", [None, []])
def test_families(make, compute, names, tmp_path):
    """Each runs, without what its classes read or keep in FP32."""
    model, inputs = saved(make, tmp_path / "wide")
    kind = type(model)
    # The model that from_pretrained() itself makes of it has some modules in FP32.
    wide = kind.from_pretrained(tmp_path / "wide", torch_dtype=BF16)
    quantized = loaded(tmp_path / "wide", kind=kind, compute=compute, modules_to_not_convert=names)
    assert len(fp8_layers(quantized)) >= 8
    error = relative_error(outcome(quantized, inputs), outcome(wide, inputs))
    assert 1e-4 < error < 0.08
    quantized.save_pretrained(tmp_path / "fp8")
    again = kind.from_pretrained(tmp_path / "fp8", torch_dtype=BF16)
    assert same_bits(quantized, again)
    assert torch.equal(outcome(quantized, inputs), outcome(again, inputs))
    if make.__name__ == "Wan":
        embedder = quantized.condition_embedder.time_embedder
        assert embedder.linear_1.weight.dtype == torch.float32
        assert "blocks.0.attn1.to_q" in fp8_layers(quantized)


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "64KB"}])
@pytest.mark.parametrize(
    ("format", "compute"),
    [
        ("128x128", "native"),
        ("e5m2 channel", "weight-only"),
        (octofold.Format("e4m3", "tensor", power_of_two=True), "native"),
    ],
    ids=str,
)
def test_saved_and_loaded_are_the_same_bits(plain, tmp_path, shards, format, compute):
    _, inputs, folder = plain
    model = loaded(folder, format=format, compute=compute, modules_to_not_convert=["to_k"])
    model.save_pretrained(tmp_path, **shards)
    files = list(tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == bool(shards)
    state = {name: value for file in files for name, value in load_file(file).items()}
    with coded_state_dict(model):
        assert same_bits(state, model)
    dtypes = {value.dtype for name, value in state.items() if "weight_scale" in name}
    assert dtypes == {torch.float32}
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "octofold"
    assert config["compute"] == compute
    if isinstance(format, str):
        assert config["format"] == format
    else:
        assert octofold.Format(**config["format"]) == format

    again = Flux.from_pretrained(tmp_path, torch_dtype=BF16)
    assert same_bits(again, model)
    assert torch.equal(outcome(again, inputs), outcome(model, inputs))
    again.save_pretrained(tmp_path / "again")
    third = Flux.from_pretrained(tmp_path / "again", torch_dtype=BF16)
    assert same_bits(third, model)


def test_which_layers_a_file_has_in_fp8_is_read_from_it(plain, tmp_path, monkeypatch):
    """Not from what the model's class names today."""
    *_, folder = plain
    model = loaded(folder)
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(Flux, "_skip_layerwise_casting_patterns", ["to_q"])
    again = Flux.from_pretrained(tmp_path, torch_dtype=BF16)
    assert set(fp8_layers(again)) == set(fp8_layers(model))
    reasons = set(again.hf_quantizer.report.left_alone.values())
    assert reasons == {"the checkpoint has its weight in high precision"}


def test_from_single_file(plain, tmp_path):
    model, inputs, folder = plain
    file = tmp_path / "model.safetensors"
    save_file(model.state_dict(), file)
    quantized = Flux.from_single_file(
        str(file), config=str(folder), quantization_config=OctofoldConfig(), torch_dtype=BF16
    )
    expected = loaded(folder)
    assert same_bits(quantized, expected)
    assert torch.equal(outcome(quantized, inputs), outcome(expected, inputs))


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
def test_dtypes(plain, dtype):
    model, inputs, folder = plain
    quantized = loaded(folder, dtype)
    dtype = dtype or BF16
    assert quantized.dtype == dtype
    wide = {name: one.to(dtype) for name, one in inputs.items()}
    error = relative_error(outcome(quantized, wide), outcome(copy.deepcopy(model).to(dtype), wide))
    assert error < 0.06
    assert {layer.bias.dtype for layer in fp8_layers(quantized).values()} == {dtype}


_LOAD = """
import sys, threading, time
import torch, diffusers
from octofold.integrations.diffusers import OctofoldConfig
import octofold
octofold.quantize(torch.zeros(4, 128), "128x128")
def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1e3
peak = before = anonymous()
over = False
def watch():
    global peak
    while not over:
        peak = max(peak, anonymous())
        time.sleep(0.001)
thread = threading.Thread(target=watch)
thread.start()
model = diffusers.FluxTransformer2DModel.from_pretrained(
    sys.argv[1], torch_dtype=torch.bfloat16, quantization_config=OctofoldConfig())
over = True
thread.join()
print(peak - before)
"""


@pytest.mark.slow
def test_the_whole_model_is_never_there_in_high_precision(tmp_path):
    """By the process's memory, without pages of files."""
    with torch.device("meta"):
        model = large()
    model = model.to(BF16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    codes = sum(one.numel() for name, one in model.named_parameters() if "norm" not in name) / 1e6
    rest = sum(one.numel() for name, one in model.named_parameters() if "norm" in name) * 2e-6
    model.save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, tmp_path], capture_output=True, text=True, check=True
    )
    peak = float(done.stdout)
    assert codes > 80
    assert peak < codes + rest + 35  # the largest weight in three forms, and the interpreter


def test_dequantize(plain, tmp_path):
    _, inputs, folder = plain
    model = loaded(folder, compute="weight-only")
    expected = outcome(model, inputs)
    weights = {
        name: layer.weight.scaled.dequantize("float32").to(BF16)
        for name, layer in fp8_layers(model).items()
    }
    model.dequantize()
    assert not fp8_layers(model)
    for name, weight in weights.items():
        assert torch.equal(model.get_submodule(name).weight, weight)
    assert relative_error(outcome(model, inputs), expected) < 0.01
    model.save_pretrained(tmp_path)
    again = Flux.from_pretrained(tmp_path, torch_dtype=BF16)
    assert torch.equal(outcome(again, inputs), outcome(model, inputs))


def test_to_another_dtype_is_refused_by_diffusers(plain):
    model = loaded(plain[2])
    for call in (model.half, model.float, lambda: model.to(torch.float16)):
        with pytest.raises(ValueError, match="quantized"):
            call()


def test_projections_are_fused_of_the_numbers(plain):
    _, inputs, folder = plain
    model = loaded(folder)
    expected = outcome(model, inputs)
    model.fuse_qkv_projections()
    assert relative_error(outcome(model, inputs), expected) < 0.06


def test_models_without_the_config_are_as_before(plain):
    model, inputs, folder = plain
    again = Flux.from_pretrained(folder, torch_dtype=BF16)
    assert not fp8_layers(again)
    assert torch.equal(outcome(again, inputs), outcome(model, inputs))


@pytest.fixture(scope="module")
def fp8r(plain, tmp_path_factory):
    """A file of the kind fp8r, as BFL publishes them, with the names of Diffusers."""
    state = {}
    for name, value in plain[0].state_dict().items():
        if value.dim() == 2 and "transformer_blocks" in name and "norm" not in name:
            codes, scale = quantize_fp8r(value)
            state |= {name: codes, name.replace(".weight", ".weight_scale"): scale}
        else:
            state[name] = value
    file = tmp_path_factory.mktemp("fp8r") / "model.safetensors"
    save_file(state, file)
    return file


def test_fp8r_by_our_config(plain, fp8r, tmp_path):
    """Its codes and scales as they are, and they can be saved, which Diffusers' own cannot."""
    _, inputs, folder = plain
    options = {"config": str(folder), "torch_dtype": BF16}
    config = OctofoldConfig(format="channel")
    model = Flux.from_single_file(str(fp8r), quantization_config=config, **options)
    state = load_file(fp8r)
    layers = fp8_layers(model)
    assert len(layers) == 22
    for name, layer in layers.items():
        codes = state[f"{name}.weight"]
        assert torch.equal(layer.weight.codes.view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(layer.weight.scaled.scale, state[f"{name}.weight_scale"])
    own = diffusers.BFLQuantizationConfig(compute_dtype=BF16)
    peer = Flux.from_single_file(str(fp8r), quantization_config=own, **options)
    assert relative_error(outcome(model, inputs), outcome(peer, inputs)) < 0.06
    model.save_pretrained(tmp_path)
    again = Flux.from_pretrained(tmp_path, torch_dtype=BF16)
    assert torch.equal(outcome(again, inputs), outcome(model, inputs))
    with pytest.raises(octofold.InvalidArgumentError, match=r"scales \[1, 1\], its own"):
        Flux.from_single_file(str(fp8r), quantization_config=OctofoldConfig(), **options)


def test_bundles_are_split_and_joined():
    """Diffusers does so to what is one weight in files with the names of BFL."""
    weights = [torch.randn(8, 16) for _ in range(3)]
    codes, scale = quantize_fp8r(torch.cat(weights))
    state = bundled({"qkv.weight": codes, "qkv.weight_scale": scale, "norm.scale": torch.ones(3)})
    assert set(state) == {"qkv.weight", "norm.scale"}
    parts = state["qkv.weight"].chunk(3)
    for part, weight in zip(parts, weights, strict=True):
        assert is_bundle(part)
        expected = quantize_fp8r(weight)
        for one, other in zip(codes_and_scale(part), expected, strict=True):
            assert torch.equal(one.float(), other.float())
    joined = codes_and_scale(torch.cat(parts))
    assert torch.equal(joined[0].float(), codes.float())
    assert torch.equal(joined[1], scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float8_e4m3fn}, "'torch_dtype': expected torch.bfloat16"),
        ({"device_map": {"": "disk"}}, "'device_map': expected devices and 'cpu'"),
        ({"dtype": torch.float32, "compute": "weight-only"}, "'torch_dtype'.*weight-only"),
        ({"compute": "fast"}, "Octofold.*'compute'.*'fast'"),  # more of these: test_hosts.py
    ],
)
def test_what_cannot_be_loaded_so(plain, options, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        loaded(plain[2], **options)


def changed(folder, target, change):
    """A copy of a saved model, with another state."""
    target.mkdir()
    (target / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    name = "diffusion_pytorch_model.safetensors"
    state = load_file(Path(folder) / name)
    change(state)
    save_file(state, target / name)
    return target


ATTENTION = "transformer_blocks.0.attn"
QUERIES = f"{ATTENTION}.to_q.weight"


def test_a_checkpoint_without_a_weight(plain, tmp_path):
    folder = changed(plain[2], tmp_path / "less", lambda state: state.pop(QUERIES))
    with pytest.raises(octofold.InvalidArgumentError, match=rf"'checkpoint'.*{QUERIES}"):
        loaded(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop(f"{QUERIES}_scale_inv"),
            "scales beside codes, got .*to_q.weight' in FP8",
        ),
        (
            lambda state: state.update({f"{QUERIES}_scale_inv": torch.ones(3, 1)}),
            r"to_q.weight', as the config says: .* scales \[1, 1\], its own, got .* \[3, 1\]",
        ),
        (  # of what is no linear layer
            lambda state: state.update({f"{ATTENTION}.norm_q.weight_scale": torch.ones(1)}),
            r"'checkpoint'.*attn\.norm_q",
        ),
    ],
)
def test_fp8_files_with_wrong_scales(plain, tmp_path, change, message):
    loaded(plain[2]).save_pretrained(tmp_path / "fp8")
    folder = changed(tmp_path / "fp8", tmp_path / "bad", change)
    with pytest.raises((octofold.InvalidArgumentError, ValueError), match=message):
        Flux.from_pretrained(folder, torch_dtype=BF16)
