"""Humming (humming-kernels 0.1.19): its layer, whose weights it repacks before, by the kernel that
its heuristics choose for so many rows. Nothing of it is imported before it is asked for.

It compiles by NVRTC where cuda-bindings are, else or by HUMMING_COMPILER=nvcc by nvcc, and keeps
kernels in HUMMING_CACHE_DIR, ~/.humming/cache. Left to itself a layer compiles the kernels of all
numbers of rows, ninety; that of the rows at hand is the same one.
"""

import importlib.util
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from octofold import ScaledTensor
from torch import Tensor

from common.operands import DTYPES

CHANNELS, GROUPS, BLOCKS = "channels", "groups", "blocks"
SCALES: dict[str, dict[str, dict[str, int]]] = {
    "channel": {CHANNELS: {}},
    "128x128": {
        GROUPS: {"group_size": 128},
        BLOCKS: {"group_size": 128, "group_size_n": 128},
    },
}
"""How it can have weights of a granularity, and the fields of its schema: groups are 1x128, what it
makes of FP8 checkpoints. Scales of channels and groups it rounds to x's type; blocks stay in FP32,
and have to fill the weight."""
COLUMNS = 128
"""N is padded to a multiple: the least that a wgmma kernel of it takes."""


def is_installed() -> bool:
    return importlib.util.find_spec("humming") is not None


def ways(granularity: str) -> Sequence[str]:
    """Names of its kinds of scales for weights of a granularity; none where it has no such."""
    return tuple(SCALES.get(granularity, {}))


def multiply(x: Tensor, layer: "Layer") -> Tensor:
    return layer(x)


class Layer:
    """A weight of a format as Humming has it, and its kernel for so many rows x of a type."""

    def __init__(self, w: ScaledTensor, name: str, way: str, x: str, rows: int) -> None:
        n, k = w.data.shape
        with w.data.device:
            layer = importlib.import_module("humming.layer").HummingLayer(
                shape_n=n,
                shape_k=k,
                weight_config=_schema(name, w.granularity, way),
                pad_n_to_multiple=COLUMNS,
                torch_dtype=DTYPES[x],
            )
        scale = {
            CHANNELS: lambda: w.scale[:, None].to(DTYPES[x]),
            GROUPS: lambda: w.scale.repeat_interleave(128, 0)[:n].to(DTYPES[x]),
            BLOCKS: lambda: w.scale,
        }[way]()
        layer.load_from_tensors({"weight": w.data.view(torch.int32), "weight_scale": scale})
        layer.transform()
        self._call = partial(layer, tuning_config=_kernel(layer.humming_config, rows))

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)


def _schema(name: str, granularity: str, way: str) -> Any:
    schema = importlib.import_module("humming.schema.humming").HummingWeightSchema
    return schema.from_config({"dtype": f"float8{name}"} | SCALES[granularity][way])


def _kernel(config: Any, rows: int) -> str:
    tune = importlib.import_module("humming.tune")
    return json.dumps(tune.get_heuristics_config(config, rows))
