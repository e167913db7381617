"""Tiny checkpoints, and what they are held against."""

import json
from pathlib import Path

import numpy as np
import octofold
import pytest
from safetensors.numpy import load_file, save_file

from tests.python import reference

FAMILIES = octofold.checkpoint_families()
GRANULARITIES = {
    "deepseek-v3": ("128x128",),
    "finegrained-fp8": ("128x128", "tensor"),
    "compressed-tensors": ("channel", "tensor", "128x128", "1x128"),
    "modelopt": ("channel", "128x128"),  # "tensor" goes with static scales of inputs
    "torchao": ("channel", "tensor", "128x128"),
    "comfyui": ("tensor",),
}
PAIRS = [(family, granularity) for family, names in GRANULARITIES.items() for granularity in names]
BF16 = reference.DTYPES["bfloat16"]
E4M3 = reference.DTYPES["e4m3"]


def wide_tensors(rng, rows=384, cols=256):
    """The tensors of two linear layers, of sizes that every family takes, and some never in FP8."""

    def normal(*shape):
        return rng.normal(0, 0.05, shape).astype(np.float32).astype(BF16)

    return {
        "blocks.0.up.weight": normal(rows, cols),
        "blocks.0.up.bias": normal(rows),
        "blocks.0.norm.weight": normal(rows),
        "blocks.0.down.weight": normal(cols, rows),
        "embed_tokens.weight": normal(50, cols),
        "steps": np.arange(5, dtype=np.int64),
    }


def write_folder(folder, tensors, config=None, metadata=None):
    """One file and its config."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_wide(folder, rng):
    """Writes a folder that quantize_checkpoint() takes."""
    return write_folder(folder, wide_tensors(rng), {"model_type": "x", "hidden_size": 256})


def read_config(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def listing(*folders):
    """Every path below with its bytes: what errors must not change."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in sorted(Path(folder).rglob("*"))
    }


def raw_tensors(folder):
    """All tensors of a folder by their names in the files, as the safetensors package reads them.
    NumPy's reader has no FP8, so by torch, as bytes with dtypes."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch_file

    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        for name, tensor in load_torch_file(path).items():
            tensors[name] = tensor if tensor.dim() else tensor.reshape(())
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    return tensors


def values_of(folder, dtype="float32"):
    """Every tensor in high precision, as load_checkpoint() has it."""
    checkpoint = octofold.load_checkpoint(folder, framework="numpy")
    return {
        name: value.dequantize(dtype) if isinstance(value, octofold.ScaledTensor) else value
        for name, value in checkpoint.items()
    }


def relative_error(values, expected):
    values, expected = (np.asarray(array, np.float64) for array in (values, expected))
    return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))


__all__ = [
    "BF16",
    "E4M3",
    "FAMILIES",
    "GRANULARITIES",
    "PAIRS",
    "listing",
    "load_file",
    "raw_tensors",
    "read_config",
    "relative_error",
    "save_file",
    "values_of",
    "wide_tensors",
    "write_folder",
    "write_wide",
]
