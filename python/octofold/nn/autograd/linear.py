"""The linear layer as a function with a gradient, and the one whose weight is frozen in FP8, with a
gradient by its input."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe, recipe_of
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import Target, cast
from ..casting.casts import (
    GRADIENT,
    WeightCasts,
    cast_weight,
    delayed_scale,
    transposed_weight,
    walkable,
)
from .boundary import Sides, sides_of
from .fitting import require_fitting
from .functions import (
    Layout,
    differentiates,
    flatten,
    refuse_in_backward,
    save,
    save_tensors,
    saved,
    saved_tensors,
)
from .main_grad import mark_gradient
from .one_call import linear_in_one_call
from .products import (
    bias_gradient,
    cast_gradient,
    gradient_formats,
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
        (octofold.nn.keep_casts() keeps the casts of an octofold.nn.Linear).
    bias: [out], of any of these dtypes.
    recipe: an octofold.nn.Recipe or the name of one: "blockwise", "rowwise", "tensorwise",
        "rowwise_with_gw_hp". "delayed" and "blockwise_two_level" need a layer, which keeps what
        they take from the steps before.

    Returns [..., out] in the dtype of x, or in autocast's. Gradients have the dtypes of what they
    belong to. For backward the FP8 operands are kept: x transposed and weight transposed; x itself
    only where the recipe has the weight gradient in high precision. What needs no gradient costs no
    product and no cast. NaN and infinities make NaN of everything that shares a scale with them.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    recipe = stateless_recipe_of("linear", recipe)
    require_fitting("linear", x, weight, bias)
    return linear_with_casts(x, weight, bias, recipe, None)


def linear_with_casts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts | None,
    main_grad: Tensor | None = None,
    x_scale: Tensor | None = None,
    amax_history: Tensor | None = None,
    channel_amax: Tensor | None = None,
    sides: Sides | None = None,
) -> Tensor:
    """linear() of arguments that fit, with the casts of the weight; None: they are yet to be made.
    Where the transposed one is missing backward makes it, of the weight as it is then.

    main_grad: float32 [out, in]: the weight's gradient is added to it, and weight.grad left alone.
    x_scale, amax_history: for delayed scaling: the static scale [1] of x (the weight's is that of
        its casts), and the layer's histories, which backward takes the gradient's scale from.
    channel_amax: for two-level scales: the layer's largest magnitudes [in] of the step before,
        which backward, not forward, overwrites with those of this x: a forward that is done again
        (activation checkpointing) then has the factors of the first time.
    sides: where tokens come from and go to, if the weight is a part of one (tensor parallelism).
    """
    y: Tensor | None
    dtype = result_dtype(x)
    is_vector = x.dim() == 1
    x = walkable(x[None] if is_vector else x)
    if sides is None and x_scale is None:
        y = linear_in_one_call("linear", x, weight, bias, recipe, casts, main_grad, dtype)
        if y is not None:
            return y[0] if is_vector else y
    if casts is None:
        both = torch.is_grad_enabled() and x.requires_grad
        casts = cast_weight(weight, recipe, True, both)
    inputs = _Inputs(
        x,
        weight,
        bias,
        *casts,
        x_scale,
        amax_history,
        channel_amax,
        main_grad,
        recipe,
        dtype,
        sides,
    )
    if differentiates("linear", x, weight, bias):
        layout, tensors = flatten(inputs)
        y = _Linear.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    else:
        y, _, _ = _forward(inputs, None, False)
    return y[0] if is_vector else y


def result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a layer's result: autocast's where it is on, else that of x."""
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


class _Inputs(NamedTuple):
    """The inputs of a linear layer."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    rows: ScaledTensor | None
    """The weight's cast."""
    transposed: ScaledTensor | None
    """The cast of the weight's transpose."""
    x_scale: Tensor | None
    amax_history: Tensor | None
    channel_amax: Tensor | None
    main_grad: Tensor | None
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""
    sides: Sides | None


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    x: Tensor | None = None
    """In high precision, for a recipe that has the weight's gradient so."""
    x_transposed: ScaledTensor | None = None
    amax: Tensor | None = None
    """The largest magnitudes of x's features, for the factors of the next step."""
    weight: Tensor | None = None
    """Kept where there is no cast of its transpose."""
    transposed: ScaledTensor | None = None
    weight_scale: Tensor | None = None
    """A static scale for the cast of the transpose that is yet to be made."""


def _forward(
    inputs: _Inputs, factors: Tensor | None, needs_weight_gradient: bool
) -> tuple[Tensor, ScaledTensor | None, Tensor | None]:
    """x · weightᵀ (+ bias), and x transposed as the weight's gradient takes it in FP8: with
    `factors` of two-level scales, and the largest magnitudes of x's features."""
    x, weight, bias, rows, recipe, dtype = *inputs[:4], inputs.recipe, inputs.dtype
    output, grad_weight, x_scale = recipe.output, recipe.grad_weight, inputs.x_scale
    entry, exit = sides_of(inputs.sides)
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
        x_rows, x_transposed, *_ = entry.cast(x, of_rows, of_columns, scale=x_scale)
    if output is None:
        bias = None if bias is None else bias.to(dtype)
        y = torch.nn.functional.linear(x.to(dtype), weight.to(dtype), bias)
    else:
        bias = bias if exit.adds_bias else None
        y = output_product(x_rows, rows, bias, recipe, exit.partial_dtype or dtype)
        y = exit.reduce(y, dtype)
    return y, x_transposed, amax


class _Linear(torch.autograd.Function):
    """linear() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        needs = layout.needs(ctx)
        x, weight, recipe = inputs.x, inputs.weight, inputs.recipe
        factors = None
        if needs.weight and inputs.channel_amax is not None:
            factors = inputs.channel_amax.clone()  # another backward may be first
        y, x_transposed, amax = _forward(inputs, factors, needs.weight)
        if x.numel() == 0:
            amax = factors
        kept = _Kept(x_transposed=x_transposed, amax=amax)
        if needs.weight and x_transposed is None:
            kept = kept._replace(x=x.to(inputs.dtype))
        if needs.x and inputs.transposed is not None:
            kept = kept._replace(transposed=inputs.transposed)
        elif needs.x:
            kept = kept._replace(weight=weight)
            if recipe.delayed is not None and inputs.rows is not None:
                kept = kept._replace(weight_scale=inputs.rows.scale)
        save(ctx, kept)
        ctx.layout, ctx.recipe, ctx.sides = layout, recipe, inputs.sides
        # These tensors are not saved: some are written to in the meantime, or in backward.
        ctx.channel_amax, ctx.amax_history = inputs.channel_amax, inputs.amax_history
        ctx.main_grad = inputs.main_grad
        ctx.weight = None if inputs.main_grad is None else weight
        ctx.x_dtype, ctx.x_shape, ctx.weight_dtype = x.dtype, x.shape, weight.dtype
        ctx.bias_dtype = None if inputs.bias is None else inputs.bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("linear", dy)
        kept: _Kept = saved(ctx)
        needs, recipe = ctx.layout.needs(ctx), ctx.recipe
        entry, exit = sides_of(ctx.sides)
        own = dy = walkable(dy)
        scale = _gradient_scale(ctx, dy, needs)
        casts = cast_gradient(dy, recipe, needs.x, needs.weight, needs.bias, scale, exit)
        if (needs.x and recipe.grad_input is None) or (needs.weight and recipe.grad_weight is None):
            dy = exit.gather(dy, dy.shape)
        dx = dw = db = None
        if needs.x:
            weight, transposed, scale = kept.weight, kept.transposed, kept.weight_scale
            dtype = entry.partial_dtype or ctx.x_dtype
            dx = input_gradient(dy, casts.rows, (weight,), transposed, recipe, dtype, scale)
            dx = entry.reduce(dx, ctx.x_dtype)
        if needs.weight:
            x = entry.gather(kept.x, ctx.x_shape)
            x_transposed = entry.gather(kept.x_transposed, ctx.x_shape)
            dtype, added_to = ctx.weight_dtype, ctx.main_grad
            dw = weight_gradient(dy, casts.transposed, x, x_transposed, recipe, dtype, added_to)
            if ctx.channel_amax is not None:
                ctx.channel_amax.copy_(kept.amax)
            if added_to is not None:
                dw = None
                mark_gradient(ctx.weight)
        if needs.bias:
            db = bias_gradient(own, casts.sums, ctx.bias_dtype, exit)
        gradients: tuple[Tensor | None, ...] = ctx.layout.gradients(ctx, x=dx, weight=dw, bias=db)
        return gradients


def _gradient_scale(ctx: Any, dy: Tensor, needs: Any) -> Tensor | None:
    """The static scale of the gradient's casts, under delayed scaling."""
    recipe: Recipe = ctx.recipe
    rows, transposed = gradient_formats(recipe, needs.x, needs.weight)
    format = transposed if rows is None else rows
    if recipe.delayed is None or format is None:
        return None
    return delayed_scale(dy, ctx.amax_history[GRADIENT], format.dtype, recipe.delayed)


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
