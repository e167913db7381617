"""Checks that the arguments of an expert layer fit together."""

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor, require_one_level
from .activated import is_gated
from .blocks import chain_recipe_of
from .fitting import require_wide


def expert_recipe_of(operation: str, recipe: Recipe | str) -> Recipe:
    """A recipe for experts: without histories, and with all three products in FP8, as there are no
    grouped products of high precision to go with them."""
    recipe = chain_recipe_of(operation, recipe)
    assert recipe.output is not None
    if recipe.grad_input is None or recipe.grad_weight is None:
        expected = "one whose products are all in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    if "128x128" in (recipe.output.a.granularity, recipe.grad_input.a.granularity):
        expected = "one whose rows have scales of 1x128, channel or tensor: squares are of tokens "
        expected += "of several experts"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe


def require_counts(operation: str, **counts: object) -> None:
    """Whole numbers of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid_argument(operation, name, "a whole number of at least 1", repr(value))


def require_projections(
    operation: str,
    first: Tensor | ScaledTensor,
    second: Tensor | ScaledTensor,
    first_bias: Tensor | None,
    second_bias: Tensor | None,
    activation: str,
    recipe: Recipe,
    names: tuple[str, str, str, str] = ("w13", "w2", "b13", "b2"),
) -> None:
    """Weights [experts, features, hidden] and [experts, hidden, inner], where the activation makes
    `inner` of the features; biases of their rows; on one device. Raises InvalidArgumentError that
    names the one that does not fit."""
    _require_weight(operation, names[0], first, recipe)
    _require_weight(operation, names[1], second, recipe)
    experts, features, hidden = first.shape
    if is_gated(activation) and features % 2 != 0:
        expected = f"[experts, 2·inner, hidden], gate and up, as {activation} takes them"
        raise invalid_argument(operation, names[0], expected, list(first.shape))
    inner = features // 2 if is_gated(activation) else features
    if tuple(second.shape) != (experts, hidden, inner):
        expected = f"[{experts}, {hidden}, {inner}] for {names[0]} {list(first.shape)}"
        raise invalid_argument(operation, names[1], expected, list(second.shape))
    for name, bias, weight in (
        (names[2], first_bias, first),
        (names[3], second_bias, second),
    ):
        if bias is None:
            continue
        require_wide(operation, name, bias)
        if tuple(bias.shape) != tuple(weight.shape[:2]):
            expected = f"{list(weight.shape[:2])} for weights {list(weight.shape)}"
            raise invalid_argument(operation, name, expected, list(bias.shape))
    device = _codes(first).device
    for name, tensor in zip(names[1:], (_codes(second), first_bias, second_bias), strict=True):
        if tensor is not None and tensor.device != device:
            expected = f"a tensor on {device}, where {names[0]} is"
            raise invalid_argument(operation, name, expected, tensor.device)


def require_routed(
    operation: str, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, hidden: int
) -> None:
    """x [..., hidden], ids and weights [..., k] of its tokens, on its device."""
    require_wide(operation, "x", x)
    if x.dim() == 0 or x.shape[-1] != hidden:
        expected = f"[..., {hidden}], as the experts take"
        raise invalid_argument(operation, "x", expected, list(x.shape))
    if not isinstance(topk_ids, Tensor) or topk_ids.dtype not in (torch.int32, torch.int64):
        got = topk_ids.dtype if isinstance(topk_ids, Tensor) else type(topk_ids).__qualname__
        expected = "a torch tensor of int32 or int64"
        raise invalid_argument(operation, "topk_ids", expected, got)
    tokens, shape = x.shape[:-1], topk_ids.shape
    if topk_ids.dim() != x.dim() or shape[:-1] != tokens or shape[-1] == 0:
        words = "".join(f"{size}, " for size in tokens)
        expected = f"[{words}k], k of at least 1 experts for each token of x {list(x.shape)}"
        raise invalid_argument(operation, "topk_ids", expected, list(shape))
    require_wide(operation, "topk_weights", topk_weights)
    if topk_weights.shape != shape:
        expected = f"{list(shape)}, the shape of topk_ids"
        raise invalid_argument(operation, "topk_weights", expected, list(topk_weights.shape))
    for name, tensor in (("topk_ids", topk_ids), ("topk_weights", topk_weights)):
        if tensor.device != x.device:
            expected = f"a tensor on {x.device}, where x is"
            raise invalid_argument(operation, name, expected, tensor.device)


def require_same_device(operation: str, x: Tensor, weight: Tensor | ScaledTensor) -> None:
    """x where the experts are."""
    device = _codes(weight).device
    if x.device != device:
        expected = f"a tensor on {device}, where the experts are"
        raise invalid_argument(operation, "x", expected, x.device)


def _require_weight(
    operation: str, name: str, weight: Tensor | ScaledTensor, recipe: Recipe
) -> None:
    if isinstance(weight, ScaledTensor):
        require_one_level(operation, name, weight)
        assert recipe.output is not None
        granularity = recipe.output.b.granularity
        if weight.granularity != granularity:
            expected = f"scales of {granularity}, as the recipe {recipe} has weights"
            raise invalid_argument(operation, name, expected, weight.granularity)
        if not isinstance(weight.data, Tensor):
            got = type(weight.data).__qualname__
            raise invalid_argument(operation, name, "a ScaledTensor of torch tensors", got)
    else:
        require_wide(operation, name, weight)
    if len(weight.shape) != 3 or 0 in weight.shape:
        expected = "[experts, out, in] with at least 1 of each"
        raise invalid_argument(operation, name, expected, list(weight.shape))


def _codes(weight: Tensor | ScaledTensor) -> Tensor:
    data: Tensor = weight.data if isinstance(weight, ScaledTensor) else weight
    return data
