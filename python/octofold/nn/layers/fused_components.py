"""The modules that a fused module is made of, and what they give to its chain."""

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import LayerNorm, Module, RMSNorm

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..autograd.blocks import chain_recipe_of
from ..autograd.fitting import is_dtensor, local_part
from ..autograd.layer import Layer
from ..autograd.normed import Norm
from ..casting.fp8_weight import Fp8Weight
from ..casting.weight_casts import casts_for_call
from ..recipes.choice import fp8_wins
from ..recipes.kernels import has_native
from .linear import Linear

NormModule: TypeAlias = RMSNorm | LayerNorm


def linear_component(
    operation: str, name: str, linear: object, recipe: Recipe | str | None, force_fp8: bool
) -> Linear:
    """An octofold.nn.Linear as it is, or one of a torch.nn.Linear's parameters; raises
    InvalidArgumentError for what a chain cannot run. recipe: None is the layer's own, else
    "blockwise"."""
    if isinstance(linear, Linear):
        if recipe is not None and chain_recipe_of(operation, recipe) != linear.recipe:
            expected = f"None, or {name}'s own, {linear.recipe}"
            raise invalid_argument(operation, "recipe", expected, str(recipe))
        chain_recipe_of(operation, linear.recipe)
        return linear
    of_new = chain_recipe_of(operation, "blockwise" if recipe is None else recipe)
    if type(linear) is not torch.nn.Linear:
        got = f"{type(linear).__module__}.{type(linear).__qualname__}"
        raise invalid_argument(operation, name, "a torch.nn.Linear or octofold.nn.Linear", got)
    return Linear.from_linear(linear, of_new, force_fp8=force_fp8)


def new_norm(kind: str, features: int, epsilon: float, **options: Any) -> NormModule:
    """torch's module of this norm."""
    module = RMSNorm if kind == "rms" else LayerNorm
    return module(features, eps=epsilon, **options)


def norm_component(operation: str, norm: object, features: int) -> NormModule:
    """One of torch's own norms, over these features, as it is; raises InvalidArgumentError."""
    if type(norm) not in (RMSNorm, LayerNorm):
        got = f"{type(norm).__module__}.{type(norm).__qualname__}"
        raise invalid_argument(operation, "norm", "a torch.nn.RMSNorm or torch.nn.LayerNorm", got)
    assert isinstance(norm, (RMSNorm, LayerNorm))
    if tuple(norm.normalized_shape) != (features,):
        got = str(list(norm.normalized_shape))
        raise invalid_argument(operation, "norm", f"one over [{features}] features", got)
    return norm


def epsilon_text(norm: NormModule) -> str:
    """Its epsilon, for norm_operands(): a text, as torch.compile with dynamic sizes makes variables
    of a module's numbers, and operations take constants. Empty: that of the dtype."""
    return "" if norm.eps is None else repr(float(norm.eps))


def norm_operands(
    norm: Module, epsilon: str, dtype: torch.dtype
) -> tuple[Norm, Tensor | None, Tensor | None]:
    """The kind, weight and bias of one of torch's norms, over a tensor of this dtype."""
    number = float(epsilon) if epsilon else torch.finfo(dtype).eps
    if isinstance(norm, RMSNorm):
        return Norm("rms", number), local_part(norm.weight), None
    assert isinstance(norm, LayerNorm)
    return Norm("layer", number), local_part(norm.weight), local_part(norm.bias)


def common_recipe(linears: tuple[Module, ...]) -> Recipe | None:
    """The recipe of layers that can be in one chain; None where they cannot: after restore(), or
    with several recipes."""
    recipe: Recipe | None = None
    for linear in linears:
        if not isinstance(linear, Linear):
            return None
        if recipe is None:
            recipe = linear.recipe
        elif linear.recipe is not recipe and linear.recipe != recipe:
            return None
    if recipe is None or recipe.output is None:
        return None
    # Codes of gate and up that came with one scale each are no codes of one weight.
    coded = any(_is_coded(linear) for linear in linears)
    if coded and len(linears) == 3 and recipe.output.b.granularity == "tensor":
        return None
    return recipe


def wins(linears: tuple[Linear, ...], x: Tensor, recipe: Recipe) -> bool:
    """True if all of the layers are to use FP8 for this x."""
    if not has_native(x.device):
        return False
    for linear in linears:
        sizes = x.numel() // max(x.shape[-1], 1), linear.in_features, linear.out_features
        always = linear.force_fp8 or _is_coded(linear)
        if not always and not fp8_wins(*sizes, recipe, x.device):
            return False
    return True


def layer_of(operation: str, linears: tuple[Linear, ...], recipe: Recipe, both: bool) -> Layer:
    """Layers side by side as one of a chain; with the weights' transposed casts if `both`."""
    parameters = [linear.own_parameters() for linear in linears]
    weights = tuple(weight for weight, _ in parameters)
    if any(is_dtensor(weight) for weight in weights):
        expected = "whole weights: fully_shard() the fused module or what it is in, not its layers"
        raise invalid_argument(operation, "weight", expected, "a DTensor")
    sharded = any(linear.is_sharded for linear in linears)
    biases = [bias for _, bias in parameters if bias is not None]
    bias = None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)
    main_grads = tuple(linear.wanted_main_grad() for linear in linears)
    casts = casts_for_call(weights, recipe, both, sharded)
    return Layer(weights, bias, casts, main_grads)


def _is_coded(linear: Any) -> bool:
    """True if the layer's weight came in FP8 alone."""
    return isinstance(linear.own_parameters()[0], Fp8Weight)
