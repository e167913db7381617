"""Models to layers whose weights alone are FP8."""

from typing import Any, Final

import torch
from torch.nn import Module

from .convert import ModuleFilter, picked, replaced, require_model, require_some
from .frozen_linear import require_cast
from .weight_only import WeightOnlyLinear

_NAME: Final = "octofold.nn.convert_weight_only"


@torch.no_grad()
def convert_weight_only(
    model: Module,
    granularity: str = "128x128",
    weight_dtype: Any = "e4m3",
    module_filter_fn: ModuleFilter | None = None,
) -> Module:
    """Make each torch.nn.Linear of a model an octofold.nn.WeightOnlyLinear.

    model: changed in place; if it is a torch.nn.Linear itself, left as it is. What is not linear
        stays as it is: have the model in float16 or bfloat16, or use autocast.
    granularity, weight_dtype: of the weights' scales and codes, as in octofold.quantize().
    module_filter_fn: as of octofold.nn.convert().

    Subclasses of torch.nn.Linear are left alone. A layer that stands in several places stays one.
    There is no way back: what the cast has rounded is gone.
    Returns the model; of a torch.nn.Linear the new layer.
    Raises InvalidArgumentError that names the argument; the model is then as it was.
    """
    require_model(_NAME, model, module_filter_fn)
    require_cast(_NAME, granularity, weight_dtype)
    linears = [module for _, module in picked(model, module_filter_fn)]
    require_some(_NAME, model, module_filter_fn, linears)
    while linears:  # one after another, so that memory never holds two of each
        linear = linears.pop()
        layer = WeightOnlyLinear.from_linear(linear, granularity, weight_dtype)
        model = replaced(model, {id(linear): layer})
    return model
