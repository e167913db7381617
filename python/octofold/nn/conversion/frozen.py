"""Layers for FP8 weights that are there already, in the place of torch.nn.Linear."""

from dataclasses import replace
from typing import Any, Final

import torch

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe, blockwise, rowwise, tensorwise
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES
from ..layers.fp8_weight import Fp8Weight
from ..layers.inference import InferenceLinear
from ..layers.weight_only import WeightOnlyLinear
from ..recipes.choice import FEW_TOKENS
from ..recipes.kernels import has_native

COMPUTE: Final = ("auto", "native", "weight-only")
"""How a layer computes with an FP8 weight. "native": it casts its input, and multiplies FP8 with
FP8. "weight-only": with 16-bit activations. "auto": "native" on GPUs that can, and on the CPU, but
with 16-bit activations for few tokens."""

# Of a product with a weight of these scales.
_RECIPES: Final = {
    "128x128": blockwise,
    "channel": rowwise,
    "tensor": tensorwise,
    "1x128": Recipe(
        output=Product("1x128 torchao", "1x128 torchao"), grad_input=None, grad_weight=None
    ),
}


def frozen_layer(
    linear: Any, weight: ScaledTensor, compute: str = "auto", device: torch.device | None = None
) -> Fp8Weight:
    """The twin of a torch.nn.Linear with this weight [out, in] and its bias.

    compute: one of COMPUTE.
    device: where it will run; None: where the weight is.
    """
    device = weight.data.device if device is None else device
    codes, bias = NAMES[weight.data.dtype], linear.bias
    if compute == "native" or (compute == "auto" and has_native(device)):
        recipe = recipe_of_weight(weight.granularity, codes)
        bias = None if bias is None else bias.detach()
        few = FEW_TOKENS if compute == "auto" else 0
        return InferenceLinear.twin_of(linear, weight, bias, recipe=recipe, few_tokens=few)
    format = Format(codes, weight.granularity)
    return WeightOnlyLinear.twin_of(linear, weight, bias, format=format)


def wide_layer(layer: Fp8Weight, dtype: torch.dtype) -> torch.nn.Linear:
    """The way back: a torch.nn.Linear with the numbers that the codes stand for, frozen, and with
    the layer's bias."""
    with torch.device("meta"):
        linear = torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    weight = layer.scaled_weight.dequantize("float32").to(dtype)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        linear.bias = torch.nn.Parameter(layer.bias.detach(), requires_grad=False)
    return linear.train(layer.training)


def recipe_of_weight(granularity: str, codes: str) -> Recipe:
    """The recipe of a product with a weight of this granularity and dtype."""
    recipe = _RECIPES[granularity]
    output = recipe.output
    assert output is not None
    if output.b.dtype == codes:
        return recipe
    output = replace(output, b=replace(output.b, dtype=codes))
    return Recipe(output=output, grad_input=None, grad_weight=None)
