"""NVIDIA Model Optimizer's layout, as the exporter of nvidia-modelopt 0.47 writes it: which
depends on CUDA packages that tests do not install, so its facts are written out here."""

import json

import octofold
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.python.checkpoints.checkpoint_support import (
    codes,
    folder_of,
    read_config,
    wide_tensors,
    write_folder,
)


def modelopt_folder(folder, algorithm, tensors, excluded=("lm_head",)):
    """Writes a folder as export_hf_checkpoint() leaves it."""
    quantization = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "exclude_modules": list(excluded),
    }
    producer = {"name": "modelopt", "version": "0.47.0"}
    floats = {"dynamic": False, "num_bits": 8, "type": "float"}
    group = {"input_activations": floats, "weights": floats, "targets": ["Linear"]}
    said = {
        **({"config_groups": {"group_0": group}} if algorithm == "FP8" else {}),
        "ignore": list(excluded),
        "quant_algo": algorithm,
        "producer": producer,
        "quant_method": "modelopt",
    }
    folder_of(folder, tensors, said)
    side = {"producer": producer, "quantization": quantization}
    (folder / "hf_quant_config.json").write_text(json.dumps(side))
    return folder


def one_layer(scale, input_scale=None):
    tensors = {
        "model.layers.0.mlp.up_proj.weight": codes(256, 384),
        "model.layers.0.mlp.up_proj.weight_scale": scale,
        "lm_head.weight": torch.ones(3, 384, dtype=torch.bfloat16),
    }
    if input_scale is not None:
        tensors["model.layers.0.mlp.up_proj.input_scale"] = input_scale
    return tensors


@pytest.mark.parametrize(
    ("algorithm", "granularity", "shape", "ours"),
    [
        ("FP8", "tensor", (), (1,)),
        ("FP8_PER_CHANNEL_PER_TOKEN", "channel", (256,), (256,)),
        ("fp8_pb_wo", "128x128", (2, 1, 3, 1), (2, 3)),
    ],
)
def test_we_read_its_layouts(tmp_path, algorithm, granularity, shape, ours):
    scale = torch.rand(shape) + 0.5
    is_static = granularity == "tensor"
    tensors = one_layer(scale, torch.tensor(0.125) if is_static else None)
    checkpoint = octofold.load_checkpoint(modelopt_folder(tmp_path / "in", algorithm, tensors))
    assert checkpoint.family == "modelopt"
    name = "model.layers.0.mlp.up_proj.weight"
    value = checkpoint[name]
    assert (value.granularity, tuple(value.scale.shape)) == (granularity, ours)
    assert torch.equal(value.scale.flatten(), scale.flatten())
    given = checkpoint.input_scale(name)
    assert given.tolist() == [0.125] if is_static else given is None
    assert set(checkpoint) == {name, "lm_head.weight"}

    report = octofold.convert_checkpoint(tmp_path / "in", tmp_path / "out", "compressed-tensors")
    assert report.requantized == report.dropped == ()
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    converted = octofold.load_checkpoint(tmp_path / "out")
    assert converted[name].equals(value)
    (group,) = read_config(tmp_path / "out")["quantization_config"]["config_groups"].values()
    assert group["input_activations"]["dynamic"] is not is_static
    back = octofold.convert_checkpoint(tmp_path / "out", tmp_path / "back", "modelopt")
    assert back.requantized == ()
    assert tmp_path / "back" / "hf_quant_config.json" in back.files
    written = load_file(tmp_path / "back" / "model.safetensors")
    assert written.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert (written[key].dtype, written[key].shape) == (tensor.dtype, tensor.shape), key
        assert torch.equal(written[key].float(), tensor.float())
    said = json.loads((tmp_path / "back" / "hf_quant_config.json").read_text())
    assert said["producer"]["name"] == "octofold"
    assert said["quantization"]["quant_algo"] == algorithm.upper()
    assert said["quantization"]["exclude_modules"] == ["lm_head"]
    groups = read_config(tmp_path / "back")["quantization_config"].get("config_groups")
    assert groups == read_config(tmp_path / "in")["quantization_config"].get("config_groups")


def test_hf_quant_config_alone_says_whose_it_is(tmp_path):
    folder = modelopt_folder(tmp_path / "in", "FP8", one_layer(torch.tensor(2.0)))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert octofold.inspect_checkpoint(folder).family == "modelopt"


def test_scales_of_tensors_go_with_static_scales_of_inputs(tmp_path, rng):
    write_folder(tmp_path / "in", wide_tensors(rng), {})
    with pytest.raises(octofold.InvalidArgumentError, match="no static scales of inputs"):
        octofold.quantize_checkpoint(
            tmp_path / "in", tmp_path / "out", family="modelopt", format="tensor"
        )
    assert not (tmp_path / "out").exists()
    tensors = one_layer(torch.tensor(0.5))
    file = tmp_path / "dynamic.safetensors"
    save_file(tensors, file)
    report = octofold.convert_checkpoint(file, tmp_path / "channels.safetensors", "modelopt")
    assert report.requantized == ()
    (name,) = report.quantized
    ours, before = (
        octofold.load_checkpoint(path)[name] for path in (tmp_path / "channels.safetensors", file)
    )
    assert (ours.granularity, before.granularity) == ("channel", "tensor")
    assert torch.equal(ours.data.view(torch.uint8), before.data.view(torch.uint8))
    assert torch.equal(ours.dequantize(), before.dequantize())


def test_other_scales_than_of_tensors_have_no_static_inputs(tmp_path):
    tensors = one_layer(torch.tensor(0.5), torch.tensor(0.125))
    folder = modelopt_folder(tmp_path / "in", "FP8", tensors)
    report = octofold.convert_checkpoint(
        folder, tmp_path / "out", "modelopt", granularity="channel"
    )
    assert report.dropped == ("model.layers.0.mlp.up_proj.input_scale",)
    assert report.requantized == ()
    assert report.dropped[0] not in load_file(tmp_path / "out" / "model.safetensors")
    said = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert said["quantization"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
