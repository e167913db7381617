"""The linear layer as a function with a gradient."""

from typing import Any

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import Target, cast
from ..casting.casts import WeightCasts, cast_as_wanted, cast_weight, walkable
from ..recipes.choice import product_casts
from ..recipes.history import GRADIENT, delayed_scale
from ..recipes.recipe import Recipe, recipe_of
from .first_order import refuse_in_backward, refuse_transforms
from .fitting import require_fitting
from .main_grad import mark_gradient
from .products import (
    bias_gradient,
    cast_gradient,
    dynamic_output_product,
    input_gradient,
    output_product,
    weight_gradient,
)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, recipe: Recipe | str = "blockwise"
) -> Tensor:
    """x · weightᵀ (+ bias) in FP8, differentiable as torch.nn.functional.linear is.

    x: [..., in] bfloat16, float16 or float32, any strides; zero tokens too.
    weight: [out, in] of any of these dtypes, whatever that of x; cast in each call
        (octofold.nn.keep_casts() keeps those of an octofold.nn.Linear).
    bias: [out], of any of these dtypes.
    recipe: an octofold.nn.Recipe or the name of one: "blockwise", "rowwise", "tensorwise",
        "rowwise_with_gw_hp". "delayed" and "blockwise_two_level" need a layer, to keep what they
        take from the steps before.

    Returns [..., out] in the dtype of x, under autocast in autocast's. Gradients have the dtypes of
    what they belong to. For backward the FP8 operands are kept: x transposed and weight transposed;
    x itself only where the recipe has the weight gradient in high precision. What needs no gradient
    costs no product and no cast. NaN and infinities make NaN of all that shares a scale with them.
    Raises InvalidArgumentError that names the argument; backward UnsupportedError where it is
    itself to be differentiated.
    """
    recipe = stateless_recipe_of("linear", recipe)
    require_fitting("linear", x, weight, bias)
    casts = cast_weight(weight, recipe, True, torch.is_grad_enabled() and x.requires_grad)
    return linear_with_casts(x, weight, bias, recipe, casts)


def linear_with_casts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts,
    main_grad: Tensor | None = None,
    x_scale: Tensor | None = None,
    amax_history: Tensor | None = None,
    channel_amax: Tensor | None = None,
) -> Tensor:
    """linear() of arguments that fit, with the casts of the weight. Where the transposed one is
    missing backward makes it, of the weight as it is then.

    main_grad: float32 [out, in]: the weight's gradient is added to it, and weight.grad left alone.
    x_scale, amax_history: for delayed scaling: the static scale [1] of x (the weight's is that of
        its casts), and the layer's histories, which backward takes the gradient's scale from.
    channel_amax: for two-level scales: the layer's largest magnitudes [in] of the step before,
        which backward, not forward, overwrites with those of this x: a forward that is done again
        (activation checkpointing) then has the factors of the first time.
    """
    dtype = result_dtype(x)
    is_vector = x.dim() == 1
    x = walkable(x[None] if is_vector else x)
    rows, transposed = casts
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        refuse_transforms("linear")
        y: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            x,
            weight,
            bias,
            None if rows is None else rows.data,
            None if rows is None else rows.scale,
            x_scale,
            None if transposed is None else transposed.data,
            # A delayed scale is that of both: Dynamo takes no tensor twice.
            None if transposed is None or recipe.delayed is not None else transposed.scale,
            amax_history,
            channel_amax,
            main_grad,
            recipe,
            dtype,
        )
    else:
        y, _, _ = _forward(x, weight, bias, rows, x_scale, None, recipe, dtype, False)
    return y[0] if is_vector else y


def result_dtype(x: Tensor) -> torch.dtype:
    """Of what a layer makes of x: autocast's where it is on, else that of x."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def stateless_recipe_of(operation: str, recipe: Recipe | str) -> Recipe:
    """A recipe for what keeps nothing from step to step."""
    recipe = recipe_of(operation, recipe)
    if recipe.keeps_state:
        expected = (
            "one without delayed scaling or two-level scales, which octofold.nn.Linear keeps from "
            "step to step"
        )
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weight_rows: ScaledTensor | None,
    x_scale: Tensor | None,
    factors: Tensor | None,
    recipe: Recipe,
    dtype: torch.dtype,
    needs_weight_gradient: bool,
) -> tuple[Tensor, ScaledTensor | None, Tensor | None]:
    """x · weightᵀ (+ bias), and x transposed as the weight gradient wants it in FP8: with `factors`
    of two-level scales, and the largest magnitudes of x's features."""
    output, grad_weight = recipe.output, recipe.grad_weight
    is_kept = needs_weight_gradient or x_scale is not None or factors is not None
    if not is_kept and product_casts(x.shape, weight_rows, recipe, x.device):
        return dynamic_output_product(x, weight_rows, bias, recipe, dtype), None, None
    of_rows = None if output is None else output.a
    x_transposed: ScaledTensor | None
    amax = None
    if factors is not None:
        assert grad_weight is not None
        two_level = Target(grad_weight.b, channel_scale=factors)
        x_rows, x_transposed, _, amax, _ = cast(
            x, rows=of_rows, transposed=two_level, columns="amax"
        )
    else:
        of_columns = grad_weight.b if needs_weight_gradient and grad_weight is not None else None
        x_rows, x_transposed, *_ = cast_as_wanted(x, of_rows, of_columns, scale=x_scale)
    if output is None:
        bias = None if bias is None else bias.to(dtype)
        y = torch.nn.functional.linear(x.to(dtype), weight.to(dtype), bias)
    else:
        y = output_product(x_rows, weight_rows, bias, recipe, dtype)
    return y, x_transposed, amax


class _Linear(torch.autograd.Function):
    """linear() where something is to be differentiated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_data: Tensor | None,
        weight_scale: Tensor | None,
        x_scale: Tensor | None,
        transposed_data: Tensor | None,
        transposed_scale: Tensor | None,
        amax_history: Tensor | None,
        channel_amax: Tensor | None,
        main_grad: Tensor | None,
        recipe: Recipe,
        dtype: torch.dtype,
    ) -> Tensor:
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        rows = None
        if recipe.output is not None and weight_data is not None:
            rows = ScaledTensor(weight_data, weight_scale, recipe.output.b.granularity)
        factors = None
        if needs_weight and channel_amax is not None:
            factors = channel_amax.clone()  # another backward may be first
        y, x_transposed, amax = _forward(
            x, weight, bias, rows, x_scale, factors, recipe, dtype, needs_weight
        )
        if x.numel() == 0:
            amax = factors
        kept_x = kept_x_scale = None
        if x_transposed is not None:
            kept_x, kept_x_scale = x_transposed.data, x_transposed.scale
        elif needs_weight:
            kept_x = x.to(dtype)
        kept_weight = None
        if needs_x:
            kept_weight = weight if transposed_data is None else transposed_data
        scale = transposed_scale if recipe.delayed is None else weight_scale
        ctx.save_for_backward(kept_x, kept_x_scale, kept_weight, scale, factors, amax)
        ctx.channel_amax = channel_amax
        ctx.transposed_is_cast = transposed_data is not None
        ctx.recipe = recipe
        ctx.amax_history = amax_history
        ctx.x_dtype = x.dtype
        ctx.main_grad = main_grad
        ctx.weight = None if main_grad is None else weight
        ctx.weight_dtype = weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("linear", dy)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        x, x_scale, weight, weight_scale, factors, amax = ctx.saved_tensors
        recipe: Recipe = ctx.recipe
        grad_input = recipe.grad_input if needs_x else None
        grad_weight = recipe.grad_weight if needs_weight else None
        dy = walkable(dy)
        scale = None
        multiplied = grad_weight if grad_input is None else grad_input
        if recipe.delayed is not None and multiplied is not None:
            history = ctx.amax_history[GRADIENT]
            scale = delayed_scale(dy, history, multiplied.a.dtype, recipe.delayed)
        dy_rows, dy_transposed, sums, *_ = cast_gradient(
            dy, recipe, needs_x, needs_weight, needs_bias, scale
        )
        dx = dw = db = transposed = x_transposed = None
        if needs_x:
            if grad_input is not None and ctx.transposed_is_cast:
                transposed = ScaledTensor(weight, weight_scale, grad_input.b.granularity)
            dtype = ctx.x_dtype
            dx = input_gradient(dy, dy_rows, (weight,), transposed, recipe, dtype, weight_scale)
        if needs_weight:
            if grad_weight is not None:
                x_transposed = ScaledTensor(x, x_scale, grad_weight.b.granularity, factors)
            dtype, added_to = ctx.weight_dtype, ctx.main_grad
            dw = weight_gradient(dy, dy_transposed, x, x_transposed, recipe, dtype, added_to)
            if ctx.channel_amax is not None:
                ctx.channel_amax.copy_(amax)
        if ctx.main_grad is not None and needs_weight:
            dw = None
            mark_gradient(ctx.weight)
        if needs_bias:
            db = bias_gradient(dy, sums, ctx.bias_dtype)
        return dx, dw, db, *[None] * 10
