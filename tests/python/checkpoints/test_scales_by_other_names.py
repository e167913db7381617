"""Scales by names that are not the families' own: read where somebody has defined them, refused
where nobody has, never left out (test_bad_checkpoints.py)."""

import json

import octofold
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.python.checkpoints.checkpoint_support import codes, folder_of, read_config

NAME = "layers.0.up.weight"


def wide(folder):
    return octofold.load_checkpoint(folder)[NAME].dequantize("float32")


def repeated(scale):
    return scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)


def test_codes_without_scales_are_values(tmp_path):
    """Also where parameters beside them, or of other modules, are called so, but are none of
    theirs; and where what is no matrix has FP8 codes."""
    tensors = {
        NAME: codes(256, 384),
        "layers.0.up.bias": torch.rand(256),
        "layers.0.scale": torch.rand(3),
    }
    tensors |= {"layers.0.logit_scale": torch.rand(()), "norm.scale": torch.rand(4)}
    tensors |= {"layers.0.up.scale_shift_table": torch.rand(6, 4)}
    tensors |= {"layers.0.up.lora_B": torch.rand(256, 3), "layers.0.upper_scale": torch.rand(3)}
    tensors |= {"layers.0.up.norm.scale": torch.rand(256), "layers.0.up.no_scale": torch.rand(0)}
    tensors |= {"block.scale_shift_table": codes(6, 256), "block.head_scale": codes(6, 2)}
    tensors |= {"block.prompt_scale_shift_table": torch.rand(2, 256)}
    tensors |= {"norm.weight": torch.rand(4).to(torch.float8_e4m3fn)}
    folder = folder_of(tmp_path / "in", tensors)
    assert octofold.inspect_checkpoint(folder).family == "comfyui"
    assert torch.equal(wide(folder), codes(256, 384).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu])
def test_deepseeks_own_inference_code(tmp_path, dtype):
    scale = torch.tensor([[0.5, 1, 2], [4, 0.25, 1]]).to(dtype)
    folder = folder_of(tmp_path / "in", {NAME: codes(256, 384), "layers.0.up.scale": scale})
    contents = octofold.inspect_checkpoint(folder)
    assert contents.family == "deepseek-v3"
    assert [weight.granularity for weight in contents.weights] == ["128x128"]
    expected = codes(256, 384).float() * repeated(scale)
    assert torch.equal(wide(folder), expected)
    octofold.convert_checkpoint(folder, tmp_path / "out", "compressed-tensors")
    assert torch.equal(wide(tmp_path / "out"), expected)


@pytest.mark.parametrize("static", [True, False])
def test_autofp8(tmp_path, static):
    """vLLM's before compressed-tensors: one scale for a weight, and one for its input."""
    tensors = {NAME: codes(256, 384), "layers.0.up.weight_scale": torch.tensor(0.5)}
    tensors["lm_head.weight"] = torch.randn(16, 384, dtype=torch.bfloat16)
    if static:
        tensors["layers.0.up.input_scale"] = torch.tensor(0.125)
    scheme = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
    scheme["ignored_layers"] = ["lm_head"]
    folder = folder_of(tmp_path / "in", tensors, scheme)
    checkpoint = octofold.load_checkpoint(folder)
    assert checkpoint[NAME].granularity == "tensor"
    assert torch.equal(wide(folder), codes(256, 384).float() * 0.5)
    assert (checkpoint.input_scale(NAME) is not None) == static
    report = octofold.convert_checkpoint(folder, tmp_path / "out", "compressed-tensors")
    assert report.dropped == report.requantized == ()
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["layers.0.up.weight_scale"], torch.tensor([0.5]))
    if static:
        assert torch.equal(written["layers.0.up.input_scale"], torch.tensor([0.125]))


def test_one_number_is_a_tensor_scale_of_a_small_matrix_too(tmp_path):
    tensors = {NAME: codes(64, 96), "layers.0.up.weight_scale_inv": torch.tensor(0.5)}
    scheme = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": None}
    folder = folder_of(tmp_path / "in", tensors, scheme)
    (weight,) = octofold.inspect_checkpoint(folder).weights
    assert weight.granularity == "tensor"
    report = octofold.convert_checkpoint(
        folder, tmp_path / "out", "compressed-tensors", granularity="channel"
    )
    assert report.requantized == ()
    assert torch.equal(wide(tmp_path / "out"), codes(64, 96).float() * 0.5)


def caches(family):
    """A checkpoint of a family that has scales of caches."""
    middle = {"modelopt": ("k_proj.", "v_proj."), "compressed-tensors": ("", "")}[family]
    attention = "model.layers.0.self_attn."
    shape = () if family == "modelopt" else (1,)
    scales = {
        f"{attention}{m}{x}_scale": torch.full(shape, s)
        for m, x, s in zip(middle, "kv", (2.0, 3.0), strict=True)
    }
    tensors = {f"{attention}k_proj.weight": codes(256, 384)}
    tensors[f"{attention}k_proj.weight_scale"] = torch.full(shape, 0.5)
    tensors[f"{attention}k_proj.input_scale"] = torch.full(shape, 0.125)
    if family == "modelopt":
        said = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
        return tensors | scales, said, scales
    arguments = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    group = {"targets": ["Linear"], "weights": arguments, "input_activations": arguments}
    said = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": arguments,
    }
    return tensors | scales, said, scales


@pytest.mark.parametrize(
    ("family", "other"), [("modelopt", "compressed-tensors"), ("compressed-tensors", "modelopt")]
)
def test_scales_of_caches_are_translated(tmp_path, family, other):
    tensors, said, _ = caches(family)
    folder = folder_of(tmp_path / "in", tensors, said)
    report = octofold.convert_checkpoint(folder, tmp_path / "out", other)
    assert report.dropped == ()
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, scale in caches(other)[2].items():
        assert torch.equal(written[name], scale)
    assert written.keys() == caches(other)[0].keys()
    config = read_config(tmp_path / "out")["quantization_config"]
    if other == "modelopt":
        side = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
        assert side["quantization"]["kv_cache_quant_algo"] == "FP8"
    else:
        scheme = config["kv_cache_scheme"]
        assert (scheme["num_bits"], scheme["strategy"], scheme["dynamic"]) == (8, "tensor", False)


@pytest.mark.parametrize("beside", ["consolidated", "model.fp16", "adapter_model", "ema"])
def test_a_models_own_file_is_taken_of_several(tmp_path, beside):
    folder = folder_of(tmp_path / "in", {NAME: codes(256, 384)})
    save_file({"other.weight": codes(256, 384)}, folder / f"{beside}.safetensors")
    assert list(octofold.load_checkpoint(folder)) == [NAME]


def test_scales_of_caches_by_older_names(tmp_path):
    tensors, said, scales = caches("modelopt")
    for name in scales:
        tensors[name.replace(name[-7:], "output_scale")] = tensors[name].clone()
    folder = folder_of(tmp_path / "in", tensors, said)
    octofold.convert_checkpoint(folder, tmp_path / "out", "compressed-tensors")
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, scale in caches("compressed-tensors")[2].items():
        assert torch.equal(written[name], scale)


def test_scales_of_caches_that_have_no_place_are_named(tmp_path):
    tensors, said, scales = caches("modelopt")
    attention = "model.layers.0.self_attn."
    for name in ("kv_scale", "q_scale", "prob_scale", "q_proj.output_scale"):
        scales[attention + name] = tensors[attention + name] = torch.tensor(0.5)
    folder = folder_of(tmp_path / "in", tensors, said)
    report = octofold.convert_checkpoint(folder, tmp_path / "out", "finegrained-fp8")
    assert set(scales) <= set(report.dropped)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert not scales.keys() & written.keys()


def test_scales_of_caches_are_no_names_that_a_model_lacks(tmp_path):
    tensors, said, _ = caches("modelopt")
    folder = folder_of(tmp_path / "in", tensors, said)
    model = torch.nn.ModuleDict({"model": torch.nn.Module()})
    model["model"].layers = torch.nn.ModuleList([torch.nn.Module()])
    model["model"].layers[0].self_attn = torch.nn.Module()
    model["model"].layers[0].self_attn.k_proj = torch.nn.Linear(384, 256, bias=False)
    octofold.models.load_checkpoint_into(model, folder)
    assert model["model"].layers[0].self_attn.k_proj.weight.compute == "native"
