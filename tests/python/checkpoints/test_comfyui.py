"""Single files of diffusion models, as ComfyUI and InvokeAI read them: with scales under either
name or none, with hints in the header or beside each layer."""

import json

import numpy as np
import octofold
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.python.checkpoints.checkpoint_support import codes, wide_tensors, write_folder

LAYER = "diffusion_model.blocks.0.attn.to_q"
PLAIN = "diffusion_model.blocks.0.norm.weight"


def json_tensor(value):
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def written(path, tensors, metadata=None):
    save_file(tensors | {PLAIN: torch.ones(64, dtype=torch.bfloat16)}, path, metadata)
    return path


def test_e5m2_is_read_and_cast_anew_elsewhere(tmp_path):
    weight = codes(192, 64).to(torch.float32).to(torch.float8_e5m2)
    file = written(tmp_path / "x.safetensors", {f"{LAYER}.weight": weight})
    value = octofold.load_checkpoint(file)[f"{LAYER}.weight"]
    assert value.dtype == torch.float8_e5m2
    assert torch.equal(value.dequantize(), weight.float())
    report = octofold.convert_checkpoint(file, tmp_path / "y.safetensors", "torchao")
    assert report.requantized == (f"{LAYER}.weight",)
    ours = octofold.load_checkpoint(tmp_path / "y.safetensors")[f"{LAYER}.weight"]
    error = (ours.dequantize() - weight.float()).norm() / weight.float().norm()
    assert error < 0.04


@pytest.mark.parametrize("marker", [True, False])
def test_scale_weight_and_scale_input(tmp_path, marker):
    tensors = {
        f"{LAYER}.weight": codes(192, 64),
        f"{LAYER}.scale_weight": torch.tensor(0.25),
        f"{LAYER}.scale_input": torch.tensor([0.5]),
    }
    if marker:
        tensors["scaled_fp8"] = torch.empty(2, dtype=torch.float8_e4m3fn)
    checkpoint = octofold.load_checkpoint(written(tmp_path / "x.safetensors", tensors))
    assert checkpoint.family == "comfyui"
    assert set(checkpoint) == {f"{LAYER}.weight", PLAIN}
    value = checkpoint[f"{LAYER}.weight"]
    assert value.scale.tolist() == [0.25]
    assert checkpoint.input_scale(f"{LAYER}.weight").tolist() == [0.5]
    assert torch.equal(value.dequantize(), codes(192, 64).float() * 0.25)


def hinted(where, hint=True, format="float8_e4m3fn"):
    """A file of two layers, the first of which asks for high precision."""
    tensors, layers = {}, {}
    for name in (LAYER, f"{LAYER}2"):
        said = {"format": format}
        if name == LAYER and hint:
            said["full_precision_matrix_mult"] = True
        layers[name] = said
        tensors[f"{name}.weight"] = codes(192, 64)
        tensors[f"{name}.weight_scale"] = torch.tensor(0.125)
        tensors[f"{name}.input_scale"] = torch.tensor(2.0)
        if where == "layers":
            tensors[f"{name}.comfy_quant"] = json_tensor(said)
    header = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    return tensors, header if where == "header" else None


@pytest.mark.parametrize("where", ["header", "layers"])
def test_hints_are_honoured(tmp_path, where):
    tensors, header = hinted(where)
    file = written(tmp_path / "x.safetensors", tensors, header)
    contents = octofold.inspect_checkpoint(file)
    assert contents.family == "comfyui"
    hints = {weight.name: weight.full_precision for weight in contents.weights}
    assert hints == {f"{LAYER}.weight": True, f"{LAYER}2.weight": False}
    assert [tensor.name for tensor in contents.others] == [PLAIN]

    model = torch.nn.Module()
    for name in (LAYER, f"{LAYER}2"):
        model.add_module(name.rsplit(".")[-1], torch.nn.Linear(64, 192, bias=False))
    renamed = {
        key.replace("diffusion_model.blocks.0.attn.", ""): tensor
        for key, tensor in load_file(file).items()
        if key != PLAIN
    }
    if header is not None:
        header["_quantization_metadata"] = header["_quantization_metadata"].replace(
            "diffusion_model.blocks.0.attn.", ""
        )
    save_file(renamed, tmp_path / "model.safetensors", header)
    octofold.models.load_checkpoint_into(model, tmp_path / "model.safetensors")
    assert model.to_q.weight.compute == "weight-only"
    assert model.to_q2.weight.compute == "native"
    assert model.to_q2.weight.scale.tolist() == [0.125]


def test_what_we_write(tmp_path, rng):
    tensors = wide_tensors(rng)
    write_folder(tmp_path / "in", tensors, metadata={"author": "me"})
    file = tmp_path / "x.safetensors"
    source = tmp_path / "in" / "model.safetensors"
    report = octofold.quantize_checkpoint(source, file, family="comfyui", skip="*.down.*")
    assert report.quantized == ("blocks.0.up.weight",)
    assert list(tmp_path.glob("*.json")) == []
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["author"] == "me"
    said = json.loads(metadata["_quantization_metadata"])
    assert said == {"format_version": "1.0", "layers": {"blocks.0.up": {"format": "float8_e4m3fn"}}}
    raw = load_file(file)
    assert set(raw) == set(tensors) | {"blocks.0.up.weight_scale"}
    assert raw["blocks.0.up.weight_scale"].dtype == torch.float32
    assert raw["blocks.0.up.weight_scale"].shape == ()
    # A multiplier, as ComfyUI has it.
    values = raw["blocks.0.up.weight"].float() * raw["blocks.0.up.weight_scale"]
    original = tensors["blocks.0.up.weight"].astype(np.float32)
    assert np.abs(values.numpy() - original).max() < np.abs(original).max() / 16


def test_scales_survive_the_way_there_and_back_and_hints_are_said_to_go(tmp_path, log):
    tensors, header = hinted("layers")
    names = [tmp_path / name / "model.safetensors" for name in "xyz"]
    for name in names:
        name.parent.mkdir()
    written(names[0], tensors, header)
    (names[0].parent / "config.json").write_text("{}")  # which tells the families apart
    octofold.convert_checkpoint(*names[:2], "compressed-tensors")
    assert any("1 weights are to be multiplied in high precision" in text for text in log)
    octofold.convert_checkpoint(*names[1:], "comfyui")
    before, after = (octofold.load_checkpoint(names[i]) for i in (0, 2))
    for name in (f"{LAYER}.weight", f"{LAYER}2.weight"):
        assert before[name].equals(after[name])
        assert torch.equal(before.input_scale(name), after.input_scale(name))
    assert not any(weight.full_precision for weight in after.contents.weights)


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4", "int8_tensorwise"])
@pytest.mark.parametrize("where", ["header", "layers"])
def test_other_formats_are_refused(tmp_path, where, format):
    file = written(tmp_path / "x.safetensors", *hinted(where, format=format))
    with pytest.raises(octofold.UnsupportedError, match=f"expected the format.*{format}"):
        octofold.inspect_checkpoint(file)


@pytest.mark.parametrize("where", ["header", "layers"])
def test_notes_of_another_format_than_the_codes_are_refused(tmp_path, where):
    file = written(tmp_path / "x.safetensors", *hinted(where, format="float8_e5m2"))
    with pytest.raises(octofold.BadFormatError, match=r"to_q2?\.weight': expected F8_E5M2.*E4M3"):
        octofold.inspect_checkpoint(file)


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b""])
def test_notes_that_are_no_json_are_refused(tmp_path, text):
    tensors, _ = hinted("scales")
    note = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    file = written(tmp_path / "x.safetensors", tensors | {f"{LAYER}.comfy_quant": note})
    with pytest.raises(octofold.BadFormatError, match="comfy_quant"):
        octofold.inspect_checkpoint(file)
