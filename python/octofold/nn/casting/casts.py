"""What a recipe casts: each tensor as rows, transposed, or both."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..._core.scaled_tensor import ScaledTensor
from ..._ops.casts import quantize, quantize_both, quantize_with_columns
from ..recipes.recipe import TWO_LEVEL, Recipe
from .expert_casts import cast_experts

# Granularities of rows and of the transpose that one call casts to.
_TOGETHER: Final = (
    ("tensor", "tensor"),
    ("channel", "channel"),
    ("1x128", "1x128"),
    ("1x128", "channel"),
    ("128x128", "128x128"),
)

Casts: TypeAlias = tuple[ScaledTensor | None, ScaledTensor | None]
"""Of a matrix, and of its transpose; None where no product wants it."""


class GradientCasts(NamedTuple):
    """Of a gradient: Casts, and the sums of its columns, float32: the gradient by a bias."""

    rows: ScaledTensor | None
    transposed: ScaledTensor | None
    sums: Tensor | None = None
    """None where they are not wanted, or there is no cast to make them."""


def walkable(x: Tensor) -> Tensor:
    """x [..., cols] as casts take it: contiguous columns, leading dimensions that one stride walks.
    Copied only where it is neither contiguous nor a matrix of contiguous columns."""
    if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1):
        return x
    return x.contiguous()


def joined(weights: tuple[Tensor | None, ...]) -> Tensor:
    """Weights one below the other (None: nothing), without a gradient; a single one as it is."""
    parts = [weight.detach() for weight in weights if weight is not None]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def cast(
    x: Tensor,
    dtype: str,
    rows: str | None,
    transposed: str | None,
    recipe: Recipe,
    scale: Tensor | None = None,
) -> Casts:
    """x [..., cols], and its transpose [cols, ...], at these granularities (None: not at all), from
    with as few reads as that takes; with a static tensor scale [1] if one is given."""
    power_of_two, profile = recipe.power_of_two, recipe.profile
    if scale is not None:
        return (
            None if rows is None else quantize(x, dtype, rows, profile=profile, scale=scale),
            None
            if transposed is None
            else quantize(x, dtype, transposed, profile=profile, transpose=True, scale=scale),
        )
    if rows is not None and (rows, transposed) in _TOGETHER:
        other = None if rows == transposed else transposed
        return quantize_both(
            x, dtype, rows, power_of_two, "saturate", profile, transposed_granularity=other
        )
    return (
        None if rows is None else quantize(x, dtype, rows, power_of_two, "saturate", profile),
        None
        if transposed is None
        else quantize(x, dtype, transposed, power_of_two, "saturate", profile, True),
    )


def scaled(
    codes: Tensor, scale: Tensor, granularity: str, channel_scale: Tensor | None = None
) -> ScaledTensor:
    """What a cast made at a recipe's granularity, from its parts."""
    squares = granularity == TWO_LEVEL
    return ScaledTensor(codes, scale, "128x128" if squares else granularity, channel_scale)


def cast_two_level(
    x: Tensor, dtype: str, rows: str | None, recipe: Recipe, factors: Tensor
) -> tuple[ScaledTensor | None, ScaledTensor, Tensor]:
    """x [..., cols], at this granularity or not at all; its transpose of two-level scales with
    these factors [cols]; and the largest magnitudes [cols] of x, float32: factors for the next
    step."""
    power_of_two, profile = recipe.power_of_two, recipe.profile
    together = rows == "1x128"
    *of_rows, transposed, columns = quantize_with_columns(
        x,
        "amax",
        dtype,
        "1x128" if together else "128x128",
        "128x128",
        power_of_two,
        "saturate",
        profile,
        "both" if together else "transposed",
        transposed_channel_scale=factors,
    )
    if rows is not None and not together:
        of_rows = [quantize(x, dtype, rows, power_of_two, "saturate", profile)]
    return of_rows[0] if of_rows else None, transposed, columns.amax


def cast_weight(
    weight: Tensor, recipe: Recipe, rows: bool, transposed: bool, scale: Tensor | None = None
) -> Casts:
    """A weight [out, in] for x · weightᵀ, and its transpose [in, out] for dY · weight, as far as
    wanted and as the recipe has these products in FP8. It may require a gradient. Of experts
    [experts, out, in] each one's, without a static scale."""
    output, grad_input = recipe.output, recipe.grad_input
    weight = weight.detach()
    of_rows = output.b if rows and output is not None else None
    of_transpose = grad_input.b if transposed and grad_input is not None else None
    if weight.dim() == 3:
        return cast_experts(weight, of_rows, of_transpose, recipe)
    return cast(walkable(weight), recipe.weight_dtype, of_rows, of_transpose, recipe, scale)


def cast_by(fused_cast: Callable[..., Any], rows: str | None, transposed: str | None) -> Casts:
    """What an operation with `granularity`, `transposed_granularity` and `targets` casts, at these
    granularities (None: not at all), in as few calls as that takes."""
    if rows is not None and (rows, transposed) in _TOGETHER:
        other = None if rows == transposed else transposed
        both: Casts = fused_cast(granularity=rows, transposed_granularity=other, targets="both")
        return both
    return (
        None if rows is None else fused_cast(granularity=rows, targets="rows"),
        None if transposed is None else fused_cast(granularity=transposed, targets="transposed"),
    )


def cast_options(recipe: Recipe, dtype: str) -> dict[str, Any]:
    """What all casts of a recipe to this dtype have alike."""
    return {"dtype": dtype, "power_of_two": recipe.power_of_two, "profile": recipe.profile}


def cast_grouped(
    fused_cast: Callable[..., Any], rows: str | None, transposed: str | None, offsets: Tensor
) -> Casts:
    """cast_by() of rows that are sorted by group, of an operation that takes `offsets` too: the
    transpose has the layout in which grouped_gemm() sums it by Depth."""
    if rows is not None and (rows, transposed) in (*_TOGETHER, ("1x128", "128x128")):
        other = None if rows == transposed else transposed
        both: Casts = fused_cast(
            granularity=rows, transposed_granularity=other, targets="both", offsets=offsets
        )
        return both
    return (
        None if rows is None else fused_cast(granularity=rows, targets="rows"),
        None
        if transposed is None
        else fused_cast(granularity=transposed, targets="transposed", offsets=offsets),
    )


def cast_with_sums(
    fused_cast: Callable[..., Any], rows: str | None, transposed: str | None
) -> GradientCasts:
    """cast_by() of an operation that takes `columns` too, with the sums of the columns."""
    if rows is not None and (rows, transposed) in _TOGETHER:
        other = None if rows == transposed else transposed
        of_rows, of_transpose, columns = fused_cast(
            granularity=rows, transposed_granularity=other, targets="both", columns="sums"
        )
        return GradientCasts(of_rows, of_transpose, columns.sums)
    if transposed is not None:
        of_transpose, columns = fused_cast(
            granularity=transposed, targets="transposed", columns="sums"
        )
        of_rows = None if rows is None else fused_cast(granularity=rows, targets="rows")
        return GradientCasts(of_rows, of_transpose, columns.sums)
    if rows is not None:
        of_rows, columns = fused_cast(granularity=rows, targets="rows", columns="sums")
        return GradientCasts(of_rows, None, columns.sums)
    return GradientCasts(None, None)
