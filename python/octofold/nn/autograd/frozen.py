"""A linear layer whose weight is frozen in FP8, as a function with a gradient by its input."""

from typing import Any

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..casting.casts import walkable
from ..casting.transposed import transposed_weight
from .boundary import Sides, sides_of
from .first_order import differentiates, refuse_in_backward
from .flat import save_tensors, saved_tensors
from .linear import linear_with_casts
from .products import cast_gradient, input_gradient


def frozen_linear(
    x: Tensor, weight: ScaledTensor, bias: Tensor | None, recipe: Recipe, sides: Sides | None = None
) -> Tensor:
    """x · weightᵀ (+ bias) as the recipe has it, of an x that fits. Backward casts dY, and makes
    the transpose of the codes each time: kept, it would take as much memory as the weight. Where
    the recipe has no such product in FP8, dY meets the weight's values. sides: as in
    linear_with_casts()."""
    if not differentiates("nn.InferenceLinear", x):
        return linear_with_casts(x, weight.data, bias, recipe, (weight, None), sides=sides)
    y: Tensor = _Frozen.apply(  # type: ignore[no-untyped-call]
        x, weight.data, weight.scale, bias, weight.granularity, recipe, sides
    )
    return y


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        codes: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        granularity: str,
        recipe: Recipe,
        sides: Sides | None,
    ) -> Tensor:
        save_tensors(ctx, codes, scale)
        ctx.granularity, ctx.recipe, ctx.x_dtype = granularity, recipe, x.dtype
        ctx.sides = sides
        weight = ScaledTensor(codes, scale, granularity)
        return linear_with_casts(x, codes, bias, recipe, (weight, None), sides=sides)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn.InferenceLinear", dy)
        codes, scale = saved_tensors(ctx)
        weight, recipe = ScaledTensor(codes, scale, ctx.granularity), ctx.recipe
        entry, exit = sides_of(ctx.sides)
        dtype = entry.partial_dtype or ctx.x_dtype
        is_vector = dy.dim() == 1
        dy = walkable(dy[None] if is_vector else dy)
        if recipe.grad_input is None:
            dy = exit.whole(dy, dy.shape)
            dx = torch.matmul(dy, weight.dequantize(dy.dtype)).to(dtype)
        else:
            rows = cast_gradient(dy, recipe, True, False, False, boundary=exit).rows
            transposed = transposed_weight(weight, recipe)
            dx = input_gradient(None, rows, (None,), transposed, recipe, dtype)
        dx = entry.leave(dx, ctx.x_dtype)
        return dx[0] if is_vector else dx, *(None,) * 6
