"""Tiny checkpoints, and what they are held against."""

import json
from pathlib import Path

import numpy as np
import octofold
import pytest
from safetensors.numpy import save_file

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


def codes(*shape):
    """Codes of a tensor in torch."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    return (torch.randn(shape) * 30).to(torch.float8_e4m3fn)


def folder_of(folder, tensors, said=None, config=None):
    """A model in FP8: tensors of torch, and what its config says of its quantization."""
    from safetensors.torch import save_file as save_torch_file

    folder.mkdir(parents=True, exist_ok=True)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_torch_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "llama"} if config is None else config
    if said is not None:
        config = config | {"quantization_config": said}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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
    pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch_file

    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_torch_file(path)
    return tensors


def values_of(folder, dtype="float32"):
    """Every tensor in high precision, as load_checkpoint() has it."""
    checkpoint = octofold.load_checkpoint(folder, framework="numpy")
    return {
        name: value.dequantize(dtype) if isinstance(value, octofold.ScaledTensor) else value
        for name, value in checkpoint.items()
    }
