"""The linear layer as a function with a gradient, and the one whose weight is frozen in FP8, with a
gradient by its input."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe, recipe_of
from ..._core.scaled_tensor import ScaledTensor
from ..casting.casts import WeightCasts, cast_weight, joined, transposed_weight, walkable
from .boundary import Sides, sides_of
from .chain_call import Before, Layer
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
from .in_graph import layer_in_graph
from .main_grad import mark_gradient
from .one_call import linear_in_one_call
from .products import (
    bias_gradient,
    cast_gradient,
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
    y: Tensor | None
    dtype = result_dtype(x)
    is_vector = x.dim() == 1
    x = walkable(x[None] if is_vector else x)
    if sides is None:
        y = linear_in_one_call("linear", x, weight, bias, recipe, casts, main_grad, dtype)
        if y is None:
            before = Before(x, None, None, None)
            layer = Layer((weight,), bias, casts, (main_grad,))
            results = layer_in_graph("linear", before, (layer,), recipe, None, None, False, dtype)
            y = None if results is None else results[0]
        if y is not None:
            return y[0] if is_vector else y
    if casts is None:
        both = torch.is_grad_enabled() and x.requires_grad
        casts = cast_weight(joined((weight,)), recipe, True, both)
    inputs = _Inputs(x, weight, bias, *casts, main_grad, recipe, dtype, sides)
    if differentiates("linear", x, weight, bias):
        layout, tensors = flatten(inputs)
        y = _Linear.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    else:
        y, _ = _forward(inputs, False)
    return y[0] if is_vector else y


def result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a layer's result: autocast's where it is on, else that of x."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


class _Inputs(NamedTuple):
    """The inputs of a linear layer."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    rows: ScaledTensor | None
    """The weight's cast."""
    transposed: ScaledTensor | None
    """The cast of the weight's transpose."""
    main_grad: Tensor | None
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""
    sides: Sides | None


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    x: Tensor | None
    """In high precision, for a recipe that has the weight's gradient so."""
    x_transposed: ScaledTensor | None
    weight: Tensor | None
    """Kept where there is no cast of its transpose."""
    transposed: ScaledTensor | None


def _forward(inputs: _Inputs, needs_weight_gradient: bool) -> tuple[Tensor, ScaledTensor | None]:
    """x · weightᵀ (+ bias), and x transposed as the weight's gradient takes it in FP8."""
    x, weight, bias, rows, recipe, dtype = *inputs[:4], inputs.recipe, inputs.dtype
    output, grad_weight = recipe.output, recipe.grad_weight
    entry, exit = sides_of(inputs.sides)
    of_rows = None if output is None else output.a
    of_columns = grad_weight.b if needs_weight_gradient and grad_weight is not None else None
    x_rows, x_transposed, *_ = entry.cast(x, of_rows, of_columns)
    if output is None:
        bias = None if bias is None else bias.to(dtype)
        y = torch.nn.functional.linear(x.to(dtype), weight.to(dtype), bias)
    else:
        bias = bias if exit.adds_bias else None
        y = output_product(x_rows, rows, bias, recipe, exit.partial_dtype or dtype)
        y = exit.reduce(y, dtype)
    return y, x_transposed


class _Linear(torch.autograd.Function):
    """linear() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        needs = layout.needs(ctx)
        x, weight, transposed = inputs.x, inputs.weight, inputs.transposed
        y, x_transposed = _forward(inputs, needs.weight)
        kept = _Kept(
            x=x.to(inputs.dtype) if needs.weight and x_transposed is None else None,
            x_transposed=x_transposed,
            weight=weight if needs.x and transposed is None else None,
            transposed=transposed if needs.x else None,
        )
        save(ctx, kept)
        ctx.layout, ctx.recipe, ctx.sides = layout, inputs.recipe, inputs.sides
        # These tensors are not saved: backward writes to them, or others do in the meantime.
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
        casts = cast_gradient(dy, recipe, needs.x, needs.weight, needs.bias, exit)
        if (needs.x and recipe.grad_input is None) or (needs.weight and recipe.grad_weight is None):
            dy = exit.gather(dy, dy.shape)
        dx = dw = db = None
        if needs.x:
            dtype = entry.partial_dtype or ctx.x_dtype
            dx = input_gradient(dy, casts.rows, (kept.weight,), kept.transposed, recipe, dtype)
            dx = entry.reduce(dx, ctx.x_dtype)
        if needs.weight:
            x = entry.gather(kept.x, ctx.x_shape)
            x_transposed = entry.gather(kept.x_transposed, ctx.x_shape)
            dtype, added_to = ctx.weight_dtype, ctx.main_grad
            dw = weight_gradient(dy, casts.transposed, x, x_transposed, recipe, dtype, added_to)
            if added_to is not None:
                dw = None
                mark_gradient(ctx.weight)
        if needs.bias:
            db = bias_gradient(own, casts.sums, ctx.bias_dtype, exit)
        gradients: tuple[Tensor | None, ...] = ctx.layout.gradients(ctx, x=dx, weight=dw, bias=db)
        return gradients


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
