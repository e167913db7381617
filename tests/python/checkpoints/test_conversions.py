"""From any family to any other: exactly where scales can say the same, else named, and near."""

import octofold
import pytest
import torch
from safetensors import safe_open

from tests.python.checkpoints.checkpoint_support import (
    GRANULARITIES,
    PAIRS,
    listing,
    raw_tensors,
    wide_tensors,
    write_folder,
)
from tests.python.judge import relative_error

# Casting e4m3 codes anew with other scales: half a unit of 3 bits of fraction at most, relative.
LIMIT = 0.04

CASES = [
    (source, granularity, target)
    for source, granularity in PAIRS
    for target in octofold.checkpoint_families()
    if source != target
]


def keeps(granularity, target):
    """True if the target has scales that repeat these."""
    finer = {
        "tensor": {"tensor", "channel", "128x128", "1x128"},
        "channel": {"channel", "1x128"},
        "128x128": {"128x128", "1x128"},
        "1x128": {"1x128"},
    }[granularity]
    return bool(finer & set(GRANULARITIES[target]))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """One checkpoint of each family and granularity, of the same weights."""
    import numpy as np

    base = tmp_path_factory.mktemp("sources")
    config = {"model_type": "x"}
    write_folder(base / "in", wide_tensors(np.random.default_rng(3)), config)
    for family, granularity in PAIRS:
        octofold.quantize_checkpoint(
            base / "in", base / f"{family}-{granularity}", family=family, format=granularity
        )
    return base


@pytest.mark.parametrize(("source", "granularity", "target"), CASES)
def test_any_to_any(sources, tmp_path, source, granularity, target):
    given = sources / f"{source}-{granularity}"
    untouched = listing(given)
    assert octofold.inspect_checkpoint(given).family == source
    report = octofold.convert_checkpoint(given, tmp_path / "out", target)
    assert listing(given) == untouched
    before = octofold.load_checkpoint(given, "numpy")
    after = octofold.load_checkpoint(tmp_path / "out", "numpy")
    assert after.family == target
    assert set(before) == set(after)
    weights = {weight.name for weight in before.contents.weights}
    assert set(report.quantized) == weights
    assert report.not_finite == report.dropped == ()
    exact = keeps(granularity, target)
    assert set(report.requantized) == (set() if exact else weights)
    for name, value in before.items():
        if name not in weights:
            assert after[name].tobytes() == value.tobytes()
        elif exact:
            assert after[name].data.tobytes() == value.data.tobytes()
            assert after[name].dequantize().tobytes() == value.dequantize().tobytes()
        else:
            assert relative_error(after[name].dequantize(), value.dequantize()) < LIMIT
    # The safetensors package reads it, and says what the library says.
    raw = raw_tensors(tmp_path / "out")
    assert sum(tensor.nbytes for tensor in raw.values()) == report.output_bytes
    for name in weights:
        found = after.weight(name)
        assert torch.equal(
            raw[found.codes.name].view(torch.uint8),
            torch.from_numpy(after[name].data.view("uint8")),
        )
        assert tuple(raw[found.scale.name].shape) == found.scale.shape
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as opened:
        metadata = opened.metadata() or {}
    assert ("tensor_names" in metadata) == (target == "torchao")
    assert ("_quantization_metadata" in metadata) == (target == "comfyui")


@pytest.mark.parametrize(
    ("source", "target"), [("deepseek-v3", "compressed-tensors"), ("finegrained-fp8", "torchao")]
)
def test_there_and_back_has_the_same_bytes(sources, tmp_path, source, target):
    given = sources / f"{source}-128x128"
    octofold.convert_checkpoint(given, tmp_path / "there", target)
    octofold.convert_checkpoint(tmp_path / "there", tmp_path / "back", source)
    before, after = raw_tensors(given), raw_tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[name].dtype, after[name].shape)
        assert torch.equal(
            tensor.flatten().view(torch.uint8), after[name].flatten().view(torch.uint8)
        )
    assert (given / "config.json").read_text() == (tmp_path / "back/config.json").read_text()


def test_another_granularity_of_the_same_family(sources, tmp_path):
    given = sources / "compressed-tensors-tensor"
    report = octofold.convert_checkpoint(
        given, tmp_path / "fine", "compressed-tensors", granularity="1x128"
    )
    assert report.requantized == ()
    before, after = (octofold.load_checkpoint(p, "numpy") for p in (given, tmp_path / "fine"))
    for name in report.quantized:
        assert after[name].granularity == "1x128"
        assert after[name].dequantize().tobytes() == before[name].dequantize().tobytes()
    report = octofold.convert_checkpoint(
        tmp_path / "fine", tmp_path / "coarse", "compressed-tensors", granularity="channel"
    )
    assert set(report.requantized) == set(report.quantized)
    with pytest.raises(octofold.InvalidArgumentError, match="'granularity': expected one that"):
        octofold.convert_checkpoint(given, tmp_path / "x", "torchao", granularity="1x128")
    with pytest.raises(octofold.InvalidArgumentError, match="'family': expected another family"):
        octofold.convert_checkpoint(given, tmp_path / "x", "compressed-tensors")


def test_experts_in_a_stack_go_nowhere_else(tmp_path, rng):
    tensors = {"mlp.experts.down_proj": rng.normal(0, 1, (2, 130, 140)).astype("float32")}
    write_folder(tmp_path / "in", tensors, {})
    octofold.quantize_checkpoint(tmp_path / "in", tmp_path / "a", family="finegrained-fp8")
    before = listing(tmp_path)
    with pytest.raises(
        octofold.InvalidArgumentError, match=r"fused experts in 'mlp\.experts\.down"
    ):
        octofold.convert_checkpoint(tmp_path / "a", tmp_path / "b", "compressed-tensors")
    assert listing(tmp_path) == before


@pytest.mark.parametrize(("family", "granularity"), PAIRS)
def test_names_and_shapes_tell_the_family_where_no_config_does(
    sources, tmp_path, family, granularity
):
    file = tmp_path / "x.safetensors"
    file.write_bytes((sources / f"{family}-{granularity}" / "model.safetensors").read_bytes())
    same = {  # the very same tensors
        ("finegrained-fp8", "128x128"): "deepseek-v3",
        ("compressed-tensors", "tensor"): "comfyui",
    }
    checkpoint = octofold.load_checkpoint(file, "numpy")
    assert checkpoint.family == same.get((family, granularity), family)
    with_config = octofold.load_checkpoint(sources / f"{family}-{granularity}", "numpy")
    assert set(checkpoint) == set(with_config)
    for weight in checkpoint.contents.weights:
        assert checkpoint[weight.name].equals(with_config[weight.name])
