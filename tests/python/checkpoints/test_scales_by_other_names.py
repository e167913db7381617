"""Scales by names that are not the families' own: read where somebody has defined them, refused
where nobody has, never left out."""

import json

import octofold
import pytest
import torch
from safetensors.torch import load_file, save_file

NAME = "layers.0.up.weight"


def codes(rows=256, cols=384):
    torch.manual_seed(2)
    return (torch.randn(rows, cols) * 30).to(torch.float8_e4m3fn)


def folder_of(path, tensors, quantization=None):
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    config = {"model_type": "llama"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config))
    return path


def wide(folder):
    return octofold.load_checkpoint(folder)[NAME].dequantize("float32")


def repeated(scale):
    return scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)


@pytest.mark.parametrize(
    "tensors",
    [
        {"layers.0.up.scales": torch.rand(2, 3)},
        {"layers.0.up.scale": torch.rand(256)},
        {"layers.0.up.weight.scale": torch.rand(2, 3)},
        {"layers.0.up.weight_scales": torch.rand(1)},
        {"layers.0.up.weight_scale_2": torch.rand(1)},
        {"layers.0.up.wscale": torch.rand(2, 3)},
        {"layers.0.up.qScale": torch.rand(256, 1)},
        {"layers.0.up.scaling_factor": torch.rand(())},
        {"layers.0.up.weight_amax": torch.rand(384)},
        {"layers.0.up.absmax": torch.rand(256, 6)},
        {"layers.0.up.scale_u8": torch.randint(0, 255, (2, 3), dtype=torch.uint8)},
        {"layers.0.up_scale": torch.rand(256)},
        {"layers.0.up.d": torch.rand(2, 3)},
    ],
    ids=lambda tensors: next(iter(tensors)),
)
def test_what_looks_like_a_scale_is_never_left_out(tmp_path, tensors):
    folder = folder_of(tmp_path / "in", {NAME: codes(), **tensors})
    (name,) = tensors
    for call in (octofold.inspect_checkpoint, octofold.load_checkpoint):
        expected = f"'{NAME}': expected scales under a name .*{name}"
        with pytest.raises(octofold.BadFormatError, match=expected):
            call(folder)
    with pytest.raises(octofold.BadFormatError):
        octofold.convert_checkpoint(folder, tmp_path / "out", "compressed-tensors")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("codes_of", "scales"),
    [
        ("experts.gate_up_proj", "experts.gate_up_proj_scales"),
        ("experts.gate_up_proj", "experts.gate_up_scale"),
        ("patches.weight", "patches.scale"),
    ],
)
def test_what_is_no_matrix_has_scales_too(tmp_path, codes_of, scales):
    """Stacks of experts and convolutions."""
    shape = (4, 256, 384) if "experts" in codes_of else (64, 3, 14, 14)
    tensors = {codes_of: codes(shape[0], shape[1] * shape[2] * (*shape, 1)[3]).reshape(shape)}
    tensors |= {scales: torch.rand(shape[0]), NAME: codes()}
    with pytest.raises(octofold.BadFormatError, match=f"'{codes_of}': expected scales .*{scales}"):
        octofold.inspect_checkpoint(folder_of(tmp_path / "in", tensors))


def test_quanto_is_refused(tmp_path):
    tensors = {f"{NAME}._data": codes(), f"{NAME}._scale": torch.rand(256, 1)}
    with pytest.raises(octofold.BadFormatError, match=r"weight\._scale"):
        octofold.inspect_checkpoint(folder_of(tmp_path / "in", tensors))


def test_codes_without_scales_are_values(tmp_path):
    """Also where parameters beside them, or of other modules, are called so, but are none of
    theirs; and where what is no matrix has FP8 codes."""
    tensors = {NAME: codes(), "layers.0.up.bias": torch.rand(256), "layers.0.scale": torch.rand(3)}
    tensors |= {"layers.0.logit_scale": torch.rand(()), "norm.scale": torch.rand(4)}
    tensors |= {"layers.0.up.scale_shift_table": torch.rand(6, 4)}
    tensors |= {"layers.0.up.lora_B": torch.rand(256, 3), "layers.0.upper_scale": torch.rand(3)}
    tensors |= {"layers.0.up.norm.scale": torch.rand(256), "layers.0.up.no_scale": torch.rand(0)}
    tensors |= {"block.scale_shift_table": codes(6, 256), "block.head_scale": codes(6, 2)}
    tensors |= {"block.prompt_scale_shift_table": torch.rand(2, 256)}
    tensors |= {"norm.weight": torch.rand(4).to(torch.float8_e4m3fn)}
    folder = folder_of(tmp_path / "in", tensors)
    assert octofold.inspect_checkpoint(folder).family == "comfyui"
    assert torch.equal(wide(folder), codes().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu])
def test_deepseeks_own_inference_code(tmp_path, dtype):
    scale = torch.tensor([[0.5, 1, 2], [4, 0.25, 1]]).to(dtype)
    folder = folder_of(tmp_path / "in", {NAME: codes(), "layers.0.up.scale": scale})
    contents = octofold.inspect_checkpoint(folder)
    assert contents.family == "deepseek-v3"
    assert [weight.granularity for weight in contents.weights] == ["128x128"]
    expected = codes().float() * repeated(scale)
    assert torch.equal(wide(folder), expected)
    octofold.convert_checkpoint(folder, tmp_path / "out", "compressed-tensors")
    assert torch.equal(wide(tmp_path / "out"), expected)


@pytest.mark.parametrize("static", [True, False])
def test_autofp8(tmp_path, static):
    """vLLM's before compressed-tensors: one scale for a weight, and one for its input."""
    tensors = {NAME: codes(), "layers.0.up.weight_scale": torch.tensor(0.5)}
    tensors["lm_head.weight"] = torch.randn(16, 384, dtype=torch.bfloat16)
    if static:
        tensors["layers.0.up.input_scale"] = torch.tensor(0.125)
    scheme = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic"}
    scheme["ignored_layers"] = ["lm_head"]
    folder = folder_of(tmp_path / "in", tensors, scheme)
    checkpoint = octofold.load_checkpoint(folder)
    assert checkpoint[NAME].granularity == "tensor"
    assert torch.equal(wide(folder), codes().float() * 0.5)
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
    tensors = {f"{attention}k_proj.weight": codes()}
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
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    if other == "modelopt":
        side = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
        assert side["quantization"]["kv_cache_quant_algo"] == "FP8"
    else:
        scheme = config["kv_cache_scheme"]
        assert (scheme["num_bits"], scheme["strategy"], scheme["dynamic"]) == (8, "tensor", False)


@pytest.mark.parametrize("beside", ["consolidated", "model.fp16", "adapter_model", "ema"])
def test_a_models_own_file_is_taken_of_several(tmp_path, beside):
    folder = folder_of(tmp_path / "in", {NAME: codes()})
    save_file({"other.weight": codes()}, folder / f"{beside}.safetensors")
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
    assert type(model["model"].layers[0].self_attn.k_proj) is octofold.nn.InferenceLinear


def test_nvfp4_is_named(tmp_path):
    tensors = {NAME: torch.zeros(256, 192, dtype=torch.uint8)}
    tensors["layers.0.up.weight_scale"] = codes(256, 24)
    tensors["layers.0.up.weight_scale_2"] = torch.tensor(0.5)
    with pytest.raises(octofold.UnsupportedError, match="NVFP4"):
        octofold.inspect_checkpoint(folder_of(tmp_path / "in", tensors))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["pytorch_model.bin"], "files of torch.save"),
        (["model.gguf"], "GGUF"),
        (["model-1.safetensors", "model-2.safetensors"], "need their index.*'model-1.safetensors'"),
        (["model.fp16.safetensors", "ema.safetensors"], "or one of these files itself"),
        (["model_index.json"], "a pipeline of Diffusers"),
    ],
)
def test_folders_of_other_kinds_are_told_what_to_do(tmp_path, names, words):
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(octofold.InvalidArgumentError, match=words):
        octofold.inspect_checkpoint(tmp_path)
