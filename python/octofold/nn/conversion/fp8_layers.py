"""FP8 weights that are there already, for torch.nn.Linear."""

from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn import Module, Parameter

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe, blockwise, rowwise, tensorwise
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES
from ..._info import FP8, LINEAR, WEIGHT_ONLY
from ..autograd.frozen import FEW_TOKENS
from ..casting.fp8_weight import Fp8Weight
from ..layers.fp8_parameters import native_options, output_of, weight_of
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


def frozen_weight(
    weight: ScaledTensor, dtype: torch.dtype, compute: str = "auto", format: Format | None = None
) -> Fp8Weight:
    """A weight [out, in] as linear layers take it, that stands for numbers of a dtype. It is the
    same whatever the GPU, and asks in each forward what that can.

    compute: one of COMPUTE. format: how numbers are cast that are written to it; None: as products
        that are computed so take weights.
    """
    options: dict[str, Any] = {"compute": compute}
    if compute != "weight-only":
        recipe = recipe_of_weight(weight.granularity, NAMES[weight.data.dtype])
        options = native_options(recipe, FEW_TOKENS if compute == "auto" else 0)
        format = format or output_of("", recipe).b
    return Fp8Weight.of(weight, dtype, format, **options)


def words_of(weight: Fp8Weight, device: torch.device | None = None) -> str:
    """A report's words for a linear layer with an FP8 weight that runs on a device (None: where its
    weight is): its scales and how it computes there."""
    words = f"an octofold.nn.Fp8Weight, {weight.granularity}, {weight.compute}"
    if weight.compute != "native":
        return words
    device = weight.device if device is None else device
    products = layer_products(LINEAR, FP8, device)
    how = f"{products.how} here"
    if products.how == WEIGHT_ONLY and not has_bfloat16(device):
        how += " for float16, for bfloat16 by a copy of the weight"
    return words if not products.why_not else f"{words}, {how} ({products.why_not})"


def widen(layer: Module, dtype: torch.dtype | None = None) -> None:
    """The way back: the numbers that the codes stand for, frozen."""
    weight = weight_of(layer)
    numbers = weight.dequantize(torch.float32).to(dtype or weight.dtype)
    layer.__dict__.pop("extra_repr", None)
    layer._parameters["weight"] = Parameter(numbers, requires_grad=False)


def recipe_of_weight(granularity: str, codes: str) -> Recipe:
    """The recipe of a product with a weight of this granularity and dtype."""
    recipe = _RECIPES[granularity]
    output = recipe.output
    assert output is not None
    if output.b.dtype == codes:
        return recipe
    output = replace(output, b=replace(output.b, dtype=codes))
    return Recipe(output=output, grad_input=None, grad_weight=None)
