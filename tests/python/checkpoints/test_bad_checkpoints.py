"""Checkpoints that lie, and arguments that do not fit: clear errors, and folders as they were."""

import contextlib
import json
import os

import numpy as np
import octofold
import pytest
import torch
from checkpoint_support import listing, wide_tensors, write_folder, write_wide
from octofold import InvalidArgumentError
from safetensors.torch import save_file

UP = "a.up.weight"
quantize, convert = octofold.quantize_checkpoint, octofold.convert_checkpoint


def fp8(*shape):
    torch.manual_seed(2)
    return (torch.randn(shape) * 30).to(torch.float8_e4m3fn)


def folder_of(path, tensors, said=None, config=None):
    path.mkdir(parents=True, exist_ok=True)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(copies, path / "model.safetensors")
    config = {"model_type": "x"} if config is None else config
    if said is not None:
        config["quantization_config"] = said
    (path / "config.json").write_text(json.dumps(config))
    return path


def refused(tmp_path, words, call, *arguments, error=InvalidArgumentError, **options):
    """What the call raises; every file stays what it was, and nothing is added."""
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


MATRIX, WIDE, SCALES = fp8(256, 256), torch.ones(256, 256), torch.ones(2, 2)
INV, ROW = f"{UP}_scale_inv", f"{UP}_scale"
PAIR, ROWS = {UP: MATRIX, INV: SCALES}, {UP: MATRIX, ROW: torch.ones(256, 1)}
WHOLE = PAIR | {"b.weight": MATRIX}
BOTH = WHOLE | {"b.weight_scale": torch.ones(256, 1)}
PACKED = {f"{UP}_packed": torch.ones(8, 8, dtype=torch.int32)}
BLOCKS, GROUPS = (
    ct(strategy="block", block_structure=[64, 128]),
    ct(strategy="group", group_size=32),
)
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
    "other blocks": (PAIR, FP8 | {"weight_block_size": [64, 64]}, UNSUPPORTED, ["[128, 128]"]),
    "blocks that are none": (PAIR, FP8 | {"weight_block_size": "x"}, UNSUPPORTED, ["128"]),
    "another format": (PAIR, FP8 | {"fmt": "e5m2"}, UNSUPPORTED, ["e4m3", "e5m2"]),
    "8-bit integers": (ROWS, ct(type="int"), UNSUPPORTED, ["8-bit floats"]),
    "4-bit integers": (PACKED, ct(num_bits=4, type="int"), UNSUPPORTED, ["8-bit floats"]),
    "4-bit floats": (ROWS, ct(num_bits=4), UNSUPPORTED, ["8-bit floats"]),
    "blocks of compressed-tensors": (ROWS, BLOCKS, UNSUPPORTED, ["128 x 128"]),
    "groups of compressed-tensors": (ROWS, GROUPS, UNSUPPORTED, ["groups of 128"]),
    "another method": (ROWS, {"quant_method": "awq", "bits": 4}, UNSUPPORTED, ["awq"]),
    "no method": (ROWS, {"bits": 4}, UNSUPPORTED, ["quant_method"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_wherever_they_are_told(tmp_path, lie):
    tensors, said, error, words = LIES[lie]
    folder = folder_of(tmp_path / "in", tensors, said)
    for call in (octofold.inspect_checkpoint, octofold.load_checkpoint):
        refused(tmp_path, words, call, folder, error=error)
    refused(tmp_path, words, convert, folder, tmp_path / "out", "torchao", error=error)
    refused(tmp_path, words, quantize, folder, tmp_path / "out", error=error)


@pytest.mark.parametrize(
    "said",
    [
        7,
        [],
        "fp8",
        {"quant_method": 7},
        CT | {"config_groups": 7},
        ct(num_bits="x"),
        CT | {"config_groups": {"g": {"weights": []}}},
        {"quant_method": "modelopt", "quant_algo": 7},
    ],
    ids=repr,
)
def test_configs_of_wrong_types_raise_what_is_ours(tmp_path, said):
    folder = folder_of(tmp_path / "in", ROWS, said)
    before = listing(tmp_path)
    # Or nothing, where what is wrong says nothing of the weights.
    with contextlib.suppress(octofold.BadFormatError, octofold.UnsupportedError):
        octofold.inspect_checkpoint(folder)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("text", ["{", "[]", "", '{"a": NaN}'])
def test_configs_that_are_no_json(tmp_path, text):
    folder = folder_of(tmp_path / "in", ROWS)
    (folder / "config.json").write_text(text)
    refused(tmp_path, ["config.json"], octofold.inspect_checkpoint, folder, error=BAD)


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


@pytest.mark.parametrize("family", octofold.checkpoint_families())
def test_what_progress_raises_leaves_nothing(tmp_path, rng, family):
    wide = write_wide(tmp_path / "in", rng)

    class StopError(Exception):
        pass

    def stop(done, total):
        if done > total // 2:
            raise StopError

    options = {"family": family, "progress": stop, "error": StopError}
    refused(tmp_path, [], quantize, wide, tmp_path / "out", **options)


@pytest.mark.parametrize("folder", [b"\xff", b"a \xc3\xbc", b"\xff ?#%20"], ids=str)
def test_names_need_not_be_utf8(tmp_path, rng, folder):
    place = tmp_path / os.fsdecode(folder)
    wide = write_wide(place / "in", rng)
    report = quantize(wide, place / "out", family="torchao")
    assert report.files[0].parent == place / "out"
    octofold.load_checkpoint(place / "out")[report.quantized[0]]
    text = folder.decode(errors="replace")
    refused(tmp_path, [text], quantize, wide, place / "out")
    refused(tmp_path, [text], convert, place / "no", place / "x", "torchao", error=octofold.Error)


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
