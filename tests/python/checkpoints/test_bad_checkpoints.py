"""Checkpoints that lie, and arguments that do not fit: clear errors, and folders as they were."""

import json
import os

import numpy as np
import octofold
import pytest
import torch
from octofold import InvalidArgumentError

from tests.python.checkpoints.checkpoint_support import (
    codes,
    folder_of,
    listing,
    wide_tensors,
    write_folder,
    write_wide,
)

UP = "a.up.weight"
quantize, convert = octofold.quantize_checkpoint, octofold.convert_checkpoint


def refused(tmp_path, words, call, *arguments, error=InvalidArgumentError, **options):
    """The call raises, with these words; every file stays what it was, and nothing is added."""
    before = listing(tmp_path)
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert listing(tmp_path) == before
    for word in words:
        assert word in str(caught.value)


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
CHANNELS = {"num_bits": 8, "type": "float", "strategy": "channel"}
CT = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": CHANNELS}},
}


def ct(**changes):
    """The config of compressed-tensors whose weights are others."""
    group = {"targets": ["Linear"], "weights": CHANNELS | changes}
    return CT | {"config_groups": {"group_0": group}}


MATRIX, WIDE, SCALES = codes(256, 256), torch.ones(256, 256), torch.ones(2, 2)
INV, ROW = f"{UP}_scale_inv", f"{UP}_scale"
PAIR, ROWS = {UP: MATRIX, INV: SCALES}, {UP: MATRIX, ROW: torch.ones(256, 1)}
WHOLE = PAIR | {"b.weight": MATRIX}
BOTH = WHOLE | {"b.weight_scale": torch.ones(256, 1)}
PACKED = {f"{UP}_packed": torch.ones(8, 8, dtype=torch.int32)}
TWO = f"{UP}_scale_2"
STACK = {"experts.gate_up_proj": codes(4, 256, 384), UP: MATRIX}
OF_UP = {
    "a.up.scales": torch.rand(2, 2),
    "a.up.scale": torch.rand(256),
    "a.up.weight.scale": torch.rand(2, 2),
    "a.up.weight_scales": torch.rand(1),
    TWO: torch.rand(1),
    "a.up.wscale": torch.rand(2, 2),
    "a.up.qScale": torch.rand(256, 1),
    "a.up.scaling_factor": torch.rand(()),
    "a.up.weight_amax": torch.rand(256),
    "a.up.absmax": torch.rand(256, 4),
    "a.up.scale_u8": torch.ones(2, 2, dtype=torch.uint8),
    "a.up_scale": torch.rand(256),
    "a.up.d": torch.rand(2, 2),
}
# Names of scales that nobody has defined: of a matrix, of quanto's codes, and of what is no matrix.
NAMES_OF_NOBODY = [
    *(({UP: MATRIX}, name, scale) for name, scale in OF_UP.items()),
    ({f"{UP}._data": MATRIX}, f"{UP}._scale", torch.rand(256, 1)),
    (STACK, "experts.gate_up_proj_scales", torch.rand(4)),
    (STACK, "experts.gate_up_scale", torch.rand(4)),
    ({"patches.weight": codes(64, 3, 14, 14), UP: MATRIX}, "patches.scale", torch.rand(64)),
]
BAD, UNSUPPORTED = octofold.BadFormatError, octofold.UnsupportedError

LIES = {
    "a scale is missing": (WHOLE, FP8, BAD, ["b.weight", "expected"]),
    "a scale is missing, no config": (WHOLE, None, BAD, ["'b.weight'", "b.weight_scale_inv"]),
    "a scale without a weight": (
        PAIR | {"b.weight_scale_inv": SCALES},
        FP8,
        BAD,
        ["b.weight_scale_inv", "a weight in 'b.weight'"],
    ),
    "a scale of a weight that is wide": (
        PAIR | {"b.weight": WIDE, "b.weight_scale_inv": SCALES},
        FP8,
        BAD,
        ["b.weight", "FP8"],
    ),
    "two families at once": (BOTH, FP8, BAD, ["b.weight_scale", "compressed-tensors"]),
    "two families, no config": (BOTH, None, BAD, ["b.weight_scale"]),
    "a config of another family": (PAIR, CT, BAD, ["weight_scale_inv", "deepseek-v3"]),
    "a config of another family too": (ROWS, FP8, BAD, ["weight_scale'", "compressed-tensors"]),
    "a config of what is not there": ({UP: WIDE}, FP8, BAD, ["without FP8 tensors"]),
    "scales of a wrong shape": (
        {UP: MATRIX, INV: torch.ones(2, 3)},
        FP8,
        BAD,
        ["_scale_inv", "[256,256]", "[2,3]"],
    ),
    "scales of a wrong dtype": ({UP: MATRIX, INV: SCALES.int()}, FP8, BAD, ["of F32", "I32"]),
    "zero points": (ROWS | {f"{UP}_zero_point": torch.ones(256, 1)}, CT, BAD, ["zeros"]),
    "columns in another order": (ROWS | {f"{UP}_g_idx": torch.arange(256)}, CT, BAD, ["g_idx"]),
    "scales of inputs' channels": (
        ROWS | {"a.up.pre_quant_scale": torch.rand(256)},
        CT,
        BAD,
        ["no further scales", "pre_quant_scale"],
    ),
    "two names and two scales": (
        {UP: MATRIX, ROW: torch.tensor(1.0), "a.up.scale_weight": torch.tensor(2.0)},
        None,
        BAD,
        ["scale_weight", "the numbers of", ROW],
    ),
    "two names and two scales of a cache": (
        ROWS
        | {f"a.k_proj.{name}_scale": torch.tensor(float(len(name))) for name in ("k", "output")},
        CT,
        BAD,
        ["a.k_proj", "the numbers of"],
    ),
    "two families and two scales": (PAIR | {ROW: torch.ones(1)}, FP8, BAD, ["the numbers of"]),
    "4-bit integers": (PACKED, ct(num_bits=4, type="int"), UNSUPPORTED, ["num_bits to be [8]"]),
    "another method": (ROWS, {"quant_method": "awq", "bits": 4}, UNSUPPORTED, ["awq"]),
    "no method": (ROWS, {"bits": 4}, UNSUPPORTED, ["quant_method"]),
    **{
        f"modelopt's {name}": (
            {UP: MATRIX, ROW: torch.tensor(2.0)},
            {"quant_method": "modelopt", "quant_algo": name},
            UNSUPPORTED,
            ["quant_algo FP8", name],
        )
        for name in ("W4A8_AWQ", "INT4_AWQ", "MIXED_PRECISION")
    },
    # A tensor that looks like a scale is never left out.
    **{
        f"scales called {name}": (
            tensors | {name: scale},
            None,
            BAD,
            [f"'{next(iter(tensors))}': expected scales under", name],
        )
        for tensors, name, scale in NAMES_OF_NOBODY
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_wherever_they_are_told(tmp_path, lie):
    tensors, said, error, words = LIES[lie]
    folder = folder_of(tmp_path / "in", tensors, said)
    for call in (octofold.inspect_checkpoint, octofold.load_checkpoint):
        refused(tmp_path, words, call, folder, error=error)
    refused(tmp_path, words, convert, folder, tmp_path / "out", "torchao", error=error)
    refused(tmp_path, words, quantize, folder, tmp_path / "out", error=error)


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
FLOAT8 = {"_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {"activation_value_ub": 1}}
OTHER = {"_type": "FqnToConfig", "_data": {"fqn_to_config": {"a": {"_type": "Int8WeightOnly"}}}}
WEIGHTS, INPUTS = "config_groups.group_0.weights", "config_groups.group_0.input_activations"


def inputs(**changes):
    group = {"targets": ["Linear"], "weights": CHANNELS, "input_activations": CHANNELS | changes}
    return CT | {"config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "transform_config.config_groups.u",
            CT | {"transform_config": {"config_groups": {"u": 1}}},
        ),
        ("sparsity_config.format", CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}),
        ("format", CT | {"format": "pack-quantized"}),
        ("kv_cache_scheme.num_bits", CT | {"kv_cache_scheme": {"num_bits": 4}}),
        ("config_groups.W8A8", CT | {"config_groups": {"FP8": ["a"], "W8A8": ["b"]}}),
        (f"{WEIGHTS}.type", ct(type="int")),
        (f"{WEIGHTS}.num_bits", ct(num_bits=4)),
        (f"{WEIGHTS}.symmetric", ct(symmetric=False)),
        (f"{WEIGHTS}.actorder", ct(actorder="group")),
        (f"{WEIGHTS}.strategy", ct(strategy="tensor_group")),
        (f"{WEIGHTS}.block_structure", ct(strategy="block", block_structure=[64, 128])),
        (f"{WEIGHTS}.group_size", ct(strategy="group", group_size=32)),
        (f"{INPUTS}.strategy", inputs(strategy="channel")),
        (f"{INPUTS}.dynamic", inputs(strategy="token", dynamic="local")),
        ("weight_block_size", FP8 | {"weight_block_size": [64, 64]}),
        ("weight_block_size", FP8 | {"weight_block_size": "x"}),
        ("fmt", FP8 | {"fmt": "e5m2"}),
        ("expert_dtype", FP8 | {"expert_dtype": "fp4"}),
        ("rotation", FP8 | {"rotation": "hadamard"}),
        ("pre_quant_scale", MODELOPT | {"pre_quant_scale": True}),
        ("kv_cache_quant_algo", MODELOPT | {"kv_cache_quant_algo": "NVFP4"}),
        ("clamp_val", {"quant_method": "fbgemm_fp8", "clamp_val": [-1, 1]}),
        (
            "quant_type.default._data.activation_value_ub",
            {"quant_method": "torchao", "quant_type": {"default": FLOAT8}},
        ),
        ("quant_type.a._type", {"quant_method": "torchao", "quant_type": {"default": OTHER}}),
    ],
)
def test_keys_that_change_numbers_are_refused_by_name(tmp_path, key, said):
    folder = folder_of(tmp_path / "in", ROWS, said)
    for call, more in (
        (octofold.load_checkpoint, ()),
        (convert, (tmp_path / "out", "deepseek-v3")),
    ):
        words = [f"quantization_config.{key} "]
        refused(tmp_path, words, call, folder, *more, error=UNSUPPORTED)


@pytest.mark.parametrize(
    "said",
    [
        FP8 | {"is_checkpoint_fp8_serialized": True, "packed_modules_mapping": {"qkv": ["q"]}},
        FP8 | {"quant_dtype": "float8_e4m3fn"},
        MODELOPT | {"quantized_layers": {"a.up": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}}},
        ct(group_size=0) | {"kv_cache_scheme": {"num_bits": 8, "group_size": -1}},
    ],
)
def test_keys_that_change_no_numbers_are_read(tmp_path, said):
    note = b'{"format": "float8_e4m3fn", "orig_dtype": "bf16", "orig_shape": [256, 256]}'
    tensors = PAIR if said["quant_method"] == "fp8" else ROWS
    tensors = tensors | {"a.up.comfy_quant": torch.tensor([*note], dtype=torch.uint8)}
    assert [*octofold.load_checkpoint(folder_of(tmp_path / "in", tensors, said))] == [UP]


def test_fbgemm_is_read(tmp_path):
    config = pytest.importorskip("transformers").FbgemmFp8Config().to_dict()
    said = json.loads(json.dumps(config, default=lambda value: value.value))
    # Zero points of zeros, which compressed-tensors once wrote, are no others.
    more = {
        "a.up.input_scale_ub": torch.tensor([1200.0]),
        f"{UP}_zero_point": (-torch.zeros(256, 1)).to(MATRIX.dtype),
        "a.up.input_zero_point": -torch.zeros(1),
    }
    tensors = ROWS | {ROW: torch.rand(256, 1) + 0.5}
    folder = folder_of(tmp_path / "in", tensors | more, said)
    assert octofold.inspect_checkpoint(folder).family == "compressed-tensors"
    report = convert(folder, tmp_path / "out", "torchao")
    assert {*report.dropped} == {*more, "quantization_config.activation_scale_ub"}
    expected = MATRIX.float() * tensors[ROW]
    convert(folder, tmp_path / "own", "compressed-tensors")  # under the method's newer name
    for path in (folder, tmp_path / "out", tmp_path / "own"):
        assert torch.equal(octofold.load_checkpoint(path)[UP].dequantize("float32"), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_scales_that_are_none_are_named(tmp_path, log, value):
    cache = {f"a.{x}_proj.{x}_scale": torch.tensor(1.0) for x in "kv"}
    inv = torch.tensor([[1, 2], [3, value]])
    folder = folder_of(tmp_path / "in", {UP: MATRIX, INV: inv} | cache, FP8)
    octofold.load_checkpoint(folder)[UP]
    assert any(f"'{INV}': 1 of 4 scales are NaN" in text for text in log)
    convert(folder, tmp_path / "a", "compressed-tensors")
    assert any(
        f"1 scales hold numbers that are NaN, infinite, negative or zero: '{INV} (1 of 4)'" in text
        for text in log
    )
    lost = folder_of(tmp_path / "lost", {UP: MATRIX, INV: torch.full((2, 2), value)}, FP8)
    words = [INV, "4 of 4 scales are NaN"]
    refused(tmp_path, words, octofold.load_checkpoint(lost).__getitem__, UP, error=BAD)
    refused(tmp_path, words, convert, lost, tmp_path / "b", "compressed-tensors", error=BAD)
    for number, name in enumerate(cache, 1):
        folder_of(folder, {UP: MATRIX, INV: SCALES} | cache | {name: torch.tensor(value)}, FP8)
        octofold.load_checkpoint(folder)
        assert any(f"'{name}': 1 of 1 scales are NaN" in text for text in log)
        cache[name] = torch.tensor(value)
        if number == 1:
            convert(folder, tmp_path / "c", "modelopt")
            assert any(f"'{name} (1 of 1)'" in text for text in log)
    refused(
        tmp_path,
        ["scales of caches", "2 that"],
        convert,
        folder,
        tmp_path / "d",
        "modelopt",
        error=BAD,
    )


ADAPTERS = """base_model.model.q_proj.lora_A.weight q_proj.lora_B.default.weight
unet.to_q_lora.down.weight to_q.lora.up.weight blocks.0.processor.qkv_lora1.up.weight
lora_unet_mid_block_proj.lora_up.weight lora_te_fc1.hada_w1_a lora_te_fc1.lokr_w2
q_proj.ia3_l.weight q_proj.oft_R.weight q_proj.lora_magnitude_vector.weight"""


@pytest.mark.parametrize("name", [*ADAPTERS.split(), "modules_to_save.up.weight"])
def test_adapters_are_no_models(tmp_path, name):
    tensors = {name: WIDE, "base_model.model.other.weight": WIDE}
    folder = folder_of(tmp_path / "in", tensors)
    if name not in ADAPTERS:
        file = folder / "model.safetensors"
        file.rename(folder / "adapter_model.safetensors")
    refused(tmp_path, ["'input'", "an adapter's", "merge"], quantize, folder, tmp_path / "out")


@pytest.mark.parametrize("own", ["up.base_layer.weight", "of_a_model_with_lora_layers.weight"])
def test_what_lies_beside_a_models_weights_is_left_alone(tmp_path, own):
    beside = {"up.lora_A.weight": "adapter", "up.lora_B.x.weight": "adapter"}
    beside |= {f"{name}.weight": "optimizer" for name in ("exp_avg.up", "optimizer.up.exp_avg_sq")}
    folder = folder_of(tmp_path / "in", {own: WIDE} | dict.fromkeys(beside, WIDE))
    report = quantize(folder, tmp_path / "out")
    assert report.quantized == (own,)
    assert report.left_alone.keys() == beside.keys()
    assert all(word in report.left_alone[name] for name, word in beside.items())


def test_octofolds_own_folders_are_their_functions(tmp_path):
    transformers = pytest.importorskip("transformers")
    from octofold.integrations.transformers import OctofoldConfig

    from tests.python.checkpoints.matrix_models import LLAMA

    model = torch.nn.Sequential(torch.nn.Linear(256, 256))
    octofold.models.save(octofold.nn.convert_weight_only(model).model, tmp_path / "kept")
    LLAMA().save_pretrained(tmp_path / "wide")
    options = {"quantization_config": OctofoldConfig()}
    auto = transformers.AutoModelForCausalLM
    auto.from_pretrained(tmp_path / "wide", **options).save_pretrained(tmp_path / "saved")
    # Layers that the family can describe make one of its checkpoints; our records stay behind.
    model = octofold.nn.convert_weight_only(auto.from_pretrained(tmp_path / "wide")).model
    octofold.models.save(model, tmp_path / "ct")
    convert(tmp_path / "ct", tmp_path / "ao", "torchao")
    assert not (tmp_path / "ao" / "octofold.json").exists()
    for name, words in (("kept", ["models.load()"]), ("saved", ["from_pretrained()", "OctofoldC"])):
        folder, out = tmp_path / name, tmp_path / "out"
        for call in (octofold.inspect_checkpoint, octofold.load_checkpoint):
            refused(tmp_path, words, call, folder, error=UNSUPPORTED)
        refused(tmp_path, words, convert, folder, out, "torchao", error=UNSUPPORTED)
        refused(tmp_path, words, quantize, folder, out, error=UNSUPPORTED)


@pytest.mark.parametrize("text", ["{", "[]", "", '{"a": NaN}'])
def test_configs_that_are_no_json(tmp_path, text):
    (folder_of(tmp_path, ROWS) / "config.json").write_text(text)
    refused(tmp_path, ["config.json"], octofold.inspect_checkpoint, tmp_path, error=BAD)


def test_quantizing_twice_and_converting_what_is_wide(tmp_path, rng):
    wide, out = write_wide(tmp_path / "in", rng), tmp_path / "out"
    refused(tmp_path, ["a checkpoint in FP8", "none in FP8"], convert, wide, out, "torchao")
    for family in octofold.checkpoint_families():
        quantized = tmp_path / family
        quantize(wide, quantized, family=family)
        refused(tmp_path, ["not quantized", family], quantize, quantized, out)
        refused(tmp_path, ["another family", family], convert, quantized, out, family)
    refused(tmp_path, ["deepseek-v3", "awq"], convert, quantized, out, "awq")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_reported_and_logged(tmp_path, rng, value, log):
    tensors = wide_tensors(rng)
    tensors["blocks.0.up.weight"][200, 7] = value
    write_folder(tmp_path / "in", tensors, {})
    report = quantize(tmp_path / "in", tmp_path / "out")
    assert report.not_finite == ("blocks.0.up.weight",)
    assert any("blocks.0.up.weight" in text for text in log)
    log.clear()
    again = convert(tmp_path / "out", tmp_path / "b", "compressed-tensors")
    assert again.not_finite == report.not_finite
    assert any("blocks.0.up.weight" in text for text in log)
    value = octofold.load_checkpoint(tmp_path / "b", "numpy")["blocks.0.up.weight"]
    assert np.isfinite(value.dequantize()[:128]).all()  # another block


def test_zeros_stay_zeros(tmp_path, rng):
    tensors = wide_tensors(rng)
    tensors["blocks.0.up.weight"][:] = 0
    write_folder(tmp_path / "in", tensors, {})
    for profile in ("deepgemm", "deepseek"):
        out = tmp_path / profile
        report = quantize(tmp_path / "in", out, format=profile)
        value = octofold.load_checkpoint(out, "numpy")["blocks.0.up.weight"].dequantize()
        finite = bool(np.isfinite(value).all())
        assert (report.not_finite == ()) == finite  # never without a word
        assert not finite or not value.any()


@pytest.mark.parametrize("folder", [b"\xff", b"a \xc3\xbc", b"\xff ?#%20"], ids=str)
def test_names_need_not_be_utf8(tmp_path, rng, folder):
    place = tmp_path / os.fsdecode(folder)
    wide = write_wide(place / "in", rng)
    report = quantize(wide, place / "out", family="torchao")
    assert report.files[0].parent == place / "out"
    octofold.load_checkpoint(place / "out")[report.quantized[0]]
    refused(tmp_path, [folder.decode(errors="replace")], quantize, wide, place / "out")


DOORS = {
    "quantize_checkpoint": (("input", "output"), lambda *paths: quantize(*paths)),
    "convert_checkpoint": (("input", "output"), lambda *paths: convert(*paths, "torchao")),
    "inspect_checkpoint": (("input",), octofold.inspect_checkpoint),
    "save": (("folder",), lambda path: octofold.models.save(torch.nn.Linear(1, 1), path)),
    "load": (("folder",), lambda path: octofold.models.load(torch.nn.Linear, path)),
    "Plan.load": (("path",), octofold.models.Plan.load),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_path_is_refused_at_the_door(tmp_path, rng, door):
    arguments, call = DOORS[door]
    fitting = [write_wide(tmp_path / "in", rng), tmp_path / "out"][: len(arguments)]
    for index, argument in enumerate(arguments):
        for bad in (f"{fitting[index]}\0x", str(fitting[index]).encode(), 3, None):
            given = [*fitting[:index], bad, *fitting[index + 1 :]]
            refused(tmp_path, [f"argument '{argument}'", "a path"], call, *given)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["pytorch_model.bin"], "files of torch.save"),
        (["model.gguf"], "GGUF"),
        (
            ["model-1.safetensors", "model-2.safetensors"],
            "need their index.*with 2: 'model-1.saf",
        ),
        (["model.fp16.safetensors", "ema.safetensors"], "or one of these files itself"),
        (["model_index.json"], "a pipeline of Diffusers"),
    ],
)
def test_folders_of_other_kinds_are_told_what_to_do(tmp_path, names, words):
    for name in names:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(InvalidArgumentError, match=words):
        octofold.inspect_checkpoint(tmp_path)
