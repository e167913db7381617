"""The two passes of a linear layer, each in one call of the library: casts and products together.

What is between the calls of a layer made of several is a good part of the host's time: allocations
of casts that nobody sees, and torch, which need not know of them.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .._core.formats import Format
from .._core.library import library
from .._core.recipe import Product, Recipe
from .._core.torch import LIBRARY_TAKES_TENSORS
from .cast import one_read

Wanted: TypeAlias = tuple[bool, bool, bool]
"""Three truth values: if backward is to give the gradients of x, of the weight, and of the bias."""


class Passes(NamedTuple):
    """The passes for a layer's sizes, recipe and device. Memory is given in bytes, as uint8
    (octofold/linear.h says what is in it); None stands for what there is none of."""

    forward: Callable[..., None]
    """(x, weight, its scale where it is cast, bias, y, kept, workspace, stream)"""
    backward: Callable[..., None]
    """(dy, the cast of the weight's transpose, its scale, kept, dx, dw, db, workspace, whether it
    adds to dw, stream)"""
    kept: int
    """Bytes that forward keeps for backward."""
    forward_workspace: int
    backward_workspace: int
    wanted: Wanted


def passes_of(
    tokens: int,
    weight_shape: torch.Size,
    recipe: Recipe,
    wanted: Wanted,
    weight_is_cast: bool,
    device: torch.device,
) -> Passes | None:
    """None: of a recipe that is not all FP8, as far as it is wanted, or
    where one read does not make both casts of an operand."""
    # By the recipe itself: the hash of its fields takes longer than the library's call.
    key = tokens, weight_shape, id(recipe), wanted, weight_is_cast, device
    found = _FOUND.get(key)
    if found is None:
        if len(_FOUND) >= _MOST:
            _FOUND.clear()
        passes = None
        if LIBRARY_TAKES_TENSORS and _fits(recipe, wanted, weight_is_cast):
            out_features, in_features = weight_shape
            gpu = (device.index or 0) if device.type == "cuda" else None
            sizes = tokens, in_features, out_features
            made = library.linear(*sizes, _products(recipe), wanted, weight_is_cast, gpu)
            passes = Passes._make((*made, wanted))
        found = _FOUND[key] = recipe, passes
    return found[1]


_FOUND: Final[dict[tuple[Any, ...], tuple[Recipe, Passes | None]]] = {}
"""With the recipes, whose ids are theirs as long as they are held."""
_MOST: Final = 4096


def _fits(recipe: Recipe, wanted: Wanted, weight_is_cast: bool) -> bool:
    of_x, of_weight, of_bias = wanted
    output, grad_input, grad_weight = recipe.output, recipe.grad_input, recipe.grad_weight
    if output is None:
        return False
    if of_bias and not (of_x or of_weight):
        return False  # no cast of dY, which would sum it
    if of_x and (grad_input is None or not (weight_is_cast or one_read(output.b, grad_input.b))):
        return False
    if of_weight and (grad_weight is None or not one_read(output.a, grad_weight.b)):
        return False
    if grad_input is None or grad_weight is None or not (of_x and of_weight):
        return True
    return one_read(grad_input.a, grad_weight.a)


def _products(recipe: Recipe) -> list[tuple[Any, ...]]:
    output = recipe.output
    assert output is not None
    # The library does not look at products that are not wanted.
    return [_words(each or output) for each in (output, recipe.grad_input, recipe.grad_weight)]


def _words(product: Product) -> tuple[Any, ...]:
    how = product.fast_accumulation, product.batch_invariant
    return _words_of_format(product.a), _words_of_format(product.b), *how


def _words_of_format(format: Format) -> tuple[Any, ...]:
    return format.dtype, format.granularity, *format.options


def memory(count: int, like: Tensor) -> Tensor | None:
    """So many bytes where a tensor is; None for none."""
    if count == 0:
        return None
    return torch.empty(count, dtype=torch.uint8, device=like.device)
