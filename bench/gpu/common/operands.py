"""Operands drawn at random, and how many sets of them there have to be."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import octofold
import torch
from octofold import ScaledTensor
from octofold._timing import Call, set_count
from octofold_tool.gpu.measuring import OUT_DTYPES
from torch import Tensor

from .run import Run

DTYPES = {**OUT_DTYPES, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
MOST = 64

Made = TypeVar("Made")


def sets_of(make: Callable[[], Made], bytes_: float, run: Run, most: int = MOST) -> list[Made]:
    """Sets of operands that together are larger than any L2 cache; on a CPU one."""
    count = max(2, set_count(math.ceil(bytes_), most)) if run.on_gpu else 1
    return [make() for _ in range(count)]


def calls_of(call: Callable[..., Any], sets: Sequence[Sequence[Any]], **options: Any) -> list[Call]:
    """One for each set of arguments."""
    return [partial(call, *arguments, **options) for arguments in sets]


def normal(run: Run, *shape: int, dtype: str = "bfloat16") -> Tensor:
    return torch.randn(shape, device=run.device).to(DTYPES[dtype])


def with_scales(codes: Tensor, granularity: str) -> ScaledTensor:
    """Scales from 0.5 to 1.5, laid out as a cast lays them out."""
    shape = octofold.ops.scale_shape(granularity, *codes.shape)
    scale = torch.rand(shape, device=codes.device) + 0.5
    if granularity == "1x128":
        scale = scale.t().contiguous().t()
    return ScaledTensor(codes, scale, granularity)


def scaled(run: Run, rows: int, cols: int, granularity: str, dtype: str = "e4m3") -> ScaledTensor:
    return with_scales(normal(run, rows, cols, dtype=dtype), granularity)


def cast_activated(x: Tensor, activation: str) -> ScaledTensor:
    """The cast of an activation, of scales 1x128, as a gated product gives it."""
    return octofold.ops.cast(octofold.ops.Activated(x, activation), rows="1x128").rows
