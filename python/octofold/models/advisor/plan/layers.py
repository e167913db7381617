"""The layers of a model that can be run another way, and the reasons why others are left alone."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import Module

from ....nn.conversion.picking import objection
from ....nn.conversion.weight_readers import weight_readers

_ATTENTION: Final = (
    "attention computes in its own dtype: octofold.attention is for keys and values that a server "
    "keeps in FP8, and no plan puts it into a model"
)
_CONVOLUTION: Final = "no operation for convolutions"


@dataclass(frozen=True)
class Other:
    """Modules that no way is for."""

    kind: str
    """Name of their class."""
    count: int
    why: str


def linears_of(model: Module) -> tuple[dict[str, torch.nn.Linear], dict[str, str]]:
    """The torch.nn.Linear of a model by the first of their names; and of those that must stay as
    they are why, by theirs."""
    holders: dict[int, set[int]] = {}
    places: dict[int, str] = {}
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), set()).add(id(module))
                places.setdefault(id(parameter), f"{path}.{key}".lstrip("."))
    linears: dict[str, torch.nn.Linear] = {}
    alone: dict[str, str] = {}
    readers = weight_readers(model)
    for path, module in model.named_modules():
        if type(module) is not torch.nn.Linear:
            continue
        why = readers.get(id(module)) or _why_alone(module)
        if why is None and len(holders[id(module.weight)]) > 1:
            why = f"its weight is tied: {places[id(module.weight)]} is the same"
        if why is None:
            linears[path] = module
        else:
            alone[path] = why
    return linears, alone


def _why_alone(linear: torch.nn.Linear) -> str | None:
    hooks = (linear._forward_hooks, linear._forward_pre_hooks)
    if any(hooks):
        return "it has hooks, which another layer would lose"
    why = objection(linear)
    if why is not None:
        return why
    if linear.weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its weight is {str(linear.weight.dtype).removeprefix('torch.')}"
    if hasattr(linear.weight, "device_mesh"):
        return "its weight is sharded"
    if linear.weight.numel() == 0:
        return "its weight is empty"
    return None


def others_of(model: Module) -> tuple[Other, ...]:
    """The modules that compute products but are no torch.nn.Linear, by class."""
    counts: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        why = _why_other(module)
        if why is not None:
            counts[type(module).__name__, why] += 1
    return tuple(Other(kind, count, why) for (kind, why), count in sorted(counts.items()))


def _why_other(module: Module) -> str | None:
    name = type(module).__name__
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return _CONVOLUTION
    if isinstance(module, torch.nn.Linear):
        return (
            None
            if type(module) is torch.nn.Linear
            else "a class of its own made of torch.nn.Linear"
        )
    if name == "Conv1D":  # transformers' GPT-2
        return "a linear layer with its weight transposed: no torch.nn.Linear"
    if name.endswith("Experts"):
        return "experts: octofold.nn.convert_experts is for these"
    if isinstance(module, torch.nn.MultiheadAttention) or name.endswith("Attention"):
        return _ATTENTION
    return None
