"""Layers for FP8 weights that are there already, in the place of torch.nn.Linear."""

from dataclasses import replace
from typing import Any, Final

import torch

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe, blockwise, rowwise, tensorwise
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES
from ..._info import FP8, LINEAR, WEIGHT_ONLY
from ..autograd.frozen import FEW_TOKENS
from ..layers.fp8_linear import Fp8Linear
from ..layers.inference import InferenceLinear
from ..layers.weight_only import WeightOnlyLinear
from ..recipes.kernels import has_bfloat16, layer_products

# Recipes of products with a weight of these scales.
_RECIPES: Final = {
    "128x128": blockwise,
    "channel": rowwise,
    "tensor": tensorwise,
    "1x128": Recipe(
        output=Product("1x128 torchao", "1x128 torchao"), grad_input=None, grad_weight=None
    ),
}


def frozen_layer(linear: Any, weight: ScaledTensor, compute: str = "auto") -> Fp8Linear:
    """The twin of a torch.nn.Linear with this weight [out, in] and its bias. It is the same layer
    whatever the GPU, and asks in each forward what that can.

    compute: one of COMPUTE.
    """
    codes, bias = NAMES[weight.data.dtype], linear.bias
    if compute != "weight-only":
        recipe = recipe_of_weight(weight.granularity, codes)
        bias = None if bias is None else bias.detach()
        few = FEW_TOKENS if compute == "auto" else 0
        return InferenceLinear.twin_of(linear, weight, bias, recipe=recipe, few_tokens=few)
    format = Format(codes, weight.granularity)
    return WeightOnlyLinear.twin_of(linear, weight, bias, format=format)


def words_of(layer: Fp8Linear, device: torch.device | None = None) -> str:
    """A report's words for a layer with an FP8 weight that runs on a device (None: where its weight
    is): its class, its scales and how it computes there."""
    weight = layer.scaled_weight
    words = f"octofold.nn.{type(layer).__name__}, {weight.granularity}"
    if not isinstance(layer, InferenceLinear):
        return words
    device = weight.data.device if device is None else device
    products = layer_products(LINEAR, FP8, device)
    how = f"{products.how} here"
    if products.how == WEIGHT_ONLY and not has_bfloat16(device):
        how += " for float16, for bfloat16 by a copy of the weight"
    return words if not products.why_not else f"{words}, {how} ({products.why_not})"


def wide_layer(layer: Fp8Linear, dtype: torch.dtype) -> torch.nn.Linear:
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
