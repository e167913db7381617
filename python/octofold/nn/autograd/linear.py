"""The linear layer as a function with a gradient, and the one whose weight is frozen in FP8, with a
gradient by its input."""

from typing import Any

import torch
from torch import Tensor

from ..._core.recipe import Recipe, recipe_of
from ..._core.scaled_tensor import ScaledTensor
from ..casting.casts import WeightCasts, transposed_weight, walkable
from .boundary import Sides, sides_of
from .chain import run
from .chain_call import Chain, Layer
from .fitting import require_fitting
from .functions import differentiates, refuse_in_backward, result_dtype, save_tensors, saved_tensors
from .one_call import linear_in_one_call
from .products import cast_gradient, input_gradient


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, recipe: Recipe | str = "blockwise"
) -> Tensor:
    """x · weightᵀ (+ bias) in FP8, differentiable as torch.nn.functional.linear is.

    x: [..., in] bfloat16, float16 or float32, any strides; zero tokens too.
    weight: [out, in] of any of these dtypes, whatever that of x; cast in each call
        (octofold.nn.keep_casts() keeps the casts of an octofold.nn.Linear).
    bias: [out], of any of these dtypes.
    recipe: an octofold.nn.Recipe or the name of one: "blockwise", "rowwise", "tensorwise",
        "rowwise_with_gw_hp".

    Returns [..., out] in the dtype of x, or in autocast's. Gradients have the dtypes of what they
    belong to. For backward the FP8 operands are kept: x transposed and weight transposed; x itself
    only where the recipe has the weight gradient in high precision. What needs no gradient costs no
    product and no cast. NaN and infinities make NaN of everything that shares a scale with them.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    recipe = recipe_of("linear", recipe)
    require_fitting("linear", x, weight, bias)
    return linear_with_casts(x, weight, bias, recipe, None)


def linear_with_casts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts | None,
    main_grad: Tensor | None = None,
    sides: Sides | None = None,
) -> Tensor:
    """linear() of arguments that fit, with the casts of the weight; None: they are yet to be made.
    Where the transposed one is missing backward makes it, of the weight as it is then.

    main_grad: float32 [out, in]: the weight's gradient is added to it, and weight.grad left alone.
    sides: where tokens come from and go to, if the weight is a part of one (tensor parallelism).
    """
    if sides is None:
        dtype = result_dtype(x)
        rows = walkable(x[None] if x.dim() == 1 else x)
        y = linear_in_one_call("linear", rows, weight, bias, recipe, casts, main_grad, dtype)
        if y is not None:
            return y[0] if x.dim() == 1 else y
    layer = Layer((weight,), bias, casts, (main_grad,))
    return run(x, None, None, None, layer, None, Chain("linear", recipe, sides=sides))[0]


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
            dy = exit.gather(dy, dy.shape)
            dx = torch.matmul(dy, weight.dequantize(dy.dtype)).to(dtype)
        else:
            rows = cast_gradient(dy, recipe, True, False, False, boundary=exit).rows
            transposed = transposed_weight(weight, recipe)
            dx = input_gradient(None, rows, (None,), transposed, recipe, dtype)
        dx = entry.reduce(dx, ctx.x_dtype)
        return dx[0] if is_vector else dx, *(None,) * 6
