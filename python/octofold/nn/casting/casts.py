"""The casts of a recipe: each tensor as rows, transposed, or both."""

from typing import TypeAlias

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts, Casts, Target, cast
from ..._ops.cast_sources import Source
from ..._ops.groups import Rows
from .coded_weight import CodedWeight, coded_below
from .transposed import transposed_weight
from .wrapped_weight import plain_weight

WeightCasts: TypeAlias = tuple[ScaledTensor | None, ScaledTensor | None]
"""The casts of a weight, and of its transpose; None where no product wants it."""


def walkable(x: Tensor) -> Tensor:
    """x [..., cols] as casts take it: contiguous columns, leading dimensions that one stride walks.
    Copied only where it is neither contiguous nor a matrix of contiguous columns."""
    if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1):
        return x
    return x.contiguous()


def joined(weights: tuple[Tensor | None, ...]) -> Tensor:
    """Weights one below the other (None: nothing), without a gradient; a single one as it is."""
    parts = [plain_weight(weight.detach()) for weight in weights if weight is not None]
    if len(parts) == 1:
        return parts[0]
    coded = [part for part in parts if isinstance(part, CodedWeight)]
    return coded_below(coded) if len(coded) == len(parts) else torch.cat(parts)


def cast_as_wanted(
    source: Tensor | Source,
    rows: Format | None,
    transposed: Format | None,
    *,
    columns: str | None = None,
    offsets: Tensor | None = None,
    matrices: int | Rows | None = None,
    scale: Tensor | None = None,
) -> AnyCasts:
    """cast() where it may be that no product wants a cast. offsets: where groups of rows begin, the
    layout of a transpose. scale: a static tensor scale [1] of both casts, if there is one."""
    if rows is None and transposed is None:
        return Casts(None, None)
    return cast(
        source,
        rows=_with_scale(rows, scale),
        transposed=_with_scale(transposed, scale),
        columns=columns,
        offsets=None if transposed is None else offsets,
        matrices=matrices,
    )


def with_amax(format: Format | None, amax: Tensor) -> Target:
    """A cast of a part of a tensor: with the scales that the largest magnitudes [rows of the
    result] of the whole give."""
    assert format is not None
    if format.granularity == "tensor":
        amax = amax.amax(0, keepdim=True)
    return Target(format, amax=amax)


def _with_scale(format: Format | None, scale: Tensor | None) -> Format | Target | None:
    return format if format is None or scale is None else Target(format, scale=scale)


def cast_weight(
    weight: Tensor,
    recipe: Recipe,
    rows: bool,
    transposed: bool,
    scale: Tensor | None = None,
    used: Tensor | None = None,
) -> WeightCasts:
    """A weight [out, in] for x · weightᵀ, and its transpose [in, out] for dY · weight, as far as
    wanted and as the recipe has these products in FP8. It may require a gradient. Of experts
    [experts, out, in] each one's, without a static scale; with the offsets `used` [experts + 1] of
    their tokens, those of experts that have some: what is not cast is whatever memory held. A
    CodedWeight is its cast already."""
    output, grad_input = recipe.output, recipe.grad_input
    if isinstance(weight, CodedWeight):
        codes = weight.scaled
        return codes if rows else None, transposed_weight(codes, recipe) if transposed else None
    weight = plain_weight(weight).detach()
    of_rows = output.b if rows and output is not None else None
    of_transpose = grad_input.b if transposed and grad_input is not None else None
    matrices: int | Rows | None = None
    if weight.dim() == 3:
        weight, matrices = weight.contiguous(), weight.shape[0] if used is None else Rows(used)
    casts = cast_as_wanted(walkable(weight), of_rows, of_transpose, matrices=matrices, scale=scale)
    return casts.rows, casts.transposed
