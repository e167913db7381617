"""Errors of the quantizer for Diffusers: all that it refuses, each with a reason."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import octofold
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from octofold.integrations.diffusers import OctofoldConfig  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.integrations.diffusers_models import (  # noqa: E402
    BF16,
    flux,
    loaded,
    saved,
)

Flux = diffusers.FluxTransformer2DModel


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model, its inputs, its folder."""
    folder = tmp_path_factory.mktemp("flux")
    return *saved(flux, folder), folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "1x128"}, "'format': expected scales of a weight, 128x128, channel, tensor"),
        ({"format": "int8"}, "'format'"),
        ({"format": {"bits": 8}}, "'format': expected the fields of an octofold.Format"),
        ({"compute": "fast"}, "'compute': expected one of auto, native, weight-only, got 'fast'"),
        ({"modules_to_not_convert": "norm"}, "'modules_to_not_convert': expected a list"),
        ({"modules_to_not_convert": ["("]}, "'modules_to_not_convert'"),
    ],
)
def test_bad_configs(options, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        OctofoldConfig(**options)


def test_unknown_options_of_a_config():
    with pytest.raises(TypeError, match="unexpected bits"):
        OctofoldConfig(bits=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"torch_dtype": torch.float8_e4m3fn}, "'torch_dtype': expected torch.bfloat16"),
        ({"device_map": {"": "disk"}}, "'device_map': expected devices and 'cpu'"),
    ],
)
def test_what_cannot_be_loaded_so(plain, options, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        Flux.from_pretrained(plain[2], quantization_config=OctofoldConfig(), **options)


def test_weight_only_layers_take_16_bits(plain):
    with pytest.raises(octofold.InvalidArgumentError, match=r"'torch_dtype'.*weight-only"):
        loaded(plain[2], torch.float32, compute="weight-only")


def changed(folder, target, change):
    """A copy of a saved model, with another state."""
    target.mkdir()
    (target / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    name = "diffusion_pytorch_model.safetensors"
    state = load_file(Path(folder) / name)
    change(state)
    save_file(state, target / name)
    return target


def test_a_checkpoint_without_a_weight(plain, tmp_path):
    name = "transformer_blocks.0.attn.to_q.weight"
    folder = changed(plain[2], tmp_path / "less", lambda state: state.pop(name))
    with pytest.raises(octofold.InvalidArgumentError, match=rf"'checkpoint'.*{name}"):
        loaded(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state, key: state.pop(key), "scales beside codes, got .*to_q.weight' in FP8"),
        (
            lambda state, key: state.update({key: torch.ones(3, 1)}),
            r"to_q.weight_scale_inv \[1, 1\] of torch.float32, as the config says",
        ),
        (
            lambda state, key: state.update({key: state[key].double()}),
            r"got \[1, 1\] of torch.float64",
        ),
    ],
)
def test_fp8_files_with_wrong_scales(plain, tmp_path, change, message):
    loaded(plain[2]).save_pretrained(tmp_path / "fp8")
    key = "transformer_blocks.0.attn.to_q.weight_scale_inv"
    folder = changed(tmp_path / "fp8", tmp_path / "bad", lambda state: change(state, key))
    with pytest.raises((octofold.InvalidArgumentError, ValueError), match=message):
        Flux.from_pretrained(folder, torch_dtype=BF16)


def test_codes_of_what_is_no_linear_layer(plain, tmp_path):
    loaded(plain[2]).save_pretrained(tmp_path / "fp8")

    def change(state):
        state["transformer_blocks.0.attn.norm_q.weight_scale"] = torch.ones(1)

    folder = changed(tmp_path / "fp8", tmp_path / "bad", change)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'checkpoint'.*attn\.norm_q"):
        Flux.from_pretrained(folder, torch_dtype=BF16)


@pytest.mark.parametrize("version", ["0.41.0", "0.43.0", None])
def test_another_version_of_diffusers(monkeypatch, version):
    """One sentence with both versions, and nothing is registered."""
    from diffusers.quantizers import auto

    known = importlib.metadata.version

    def other(name):
        if name != "diffusers":
            return known(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    for table in (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING):
        monkeypatch.delitem(table, "octofold")
    monkeypatch.setattr(importlib.metadata, "version", other)
    names = [name for name in sys.modules if name.startswith("octofold.integrations.diffusers")]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    got = f"found diffusers {version}" if version else "which is not installed"
    with pytest.raises(octofold.UnavailableError, match=rf"diffusers>=0.42,<0.43, {got}"):
        importlib.import_module("octofold.integrations.diffusers")
    assert "octofold" not in auto.AUTO_QUANTIZER_MAPPING
