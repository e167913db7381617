"""A chain of linear layers, a norm and an activation, with a gradient."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.quantize import quantize
from ..casting.casts import walkable
from .activated import activated, activated_gradient, cast_activation_gradient
from .boundary import HERE, sides_of
from .chain import Chain, Layer, compute
from .first_order import differentiates, refuse_in_backward
from .flat import Layout, flatten, save, saved
from .linear import result_dtype
from .main_grad import mark_gradient
from .normed import norm_gradients, normed
from .products import (
    bias_gradient,
    cast_gradient,
    gradient_formats,
    input_gradient,
    weight_gradient,
)

_KEPT: Final = "1x128"
"""Scales of what is kept in FP8."""


def run(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    first: Layer,
    second: Layer | None,
    chain: Chain,
) -> tuple[Tensor, Tensor]:
    """The result of a chain of arguments that fit, [..., out], and what was normed. A transposed
    cast of a weight that is missing backward makes, of the weight as it is then."""
    dtype = result_dtype(x)
    is_vector = x.dim() == 1
    x = walkable(x[None] if is_vector else x)
    if residual is not None:
        residual = walkable(residual[None] if is_vector else residual)
    before = (x, residual, norm_weight, norm_bias)
    inputs = _Inputs(*before, first, second, chain, dtype)
    of_second = () if second is None else (*second.weights, second.bias)
    if differentiates(chain.name, *before, *first.weights, first.bias, *of_second):
        layout, tensors = flatten(inputs)
        results = _Chain.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        y, total = (results, x) if residual is None else results
    else:
        made = compute(*inputs)
        y, total = made.y, made.x
    return (y[0], total[0]) if is_vector else (y, total)


class _Inputs(NamedTuple):
    """The arguments of compute()."""

    x: Tensor
    residual: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    first: Layer
    second: Layer | None
    chain: Chain
    dtype: torch.dtype
    """The dtype of the result."""


class _Needs(NamedTuple):
    """Truth values: for each gradient whether it is wanted."""

    x: bool
    """Also for the residual and the operands of the norm."""
    first: bool
    """For any of its weights."""
    first_bias: bool
    second: bool
    second_bias: bool

    @property
    def gate_up(self) -> bool:
        return self.x or self.first or self.first_bias


class _Weight(NamedTuple):
    """A layer's weights, as the gradient of its input is computed from them."""

    weights: tuple[Tensor, ...] = ()
    """Kept where there is no cast of their transpose."""
    transposed: ScaledTensor | None = None


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    x: Tensor | None = None
    rstd: Tensor | None = None
    mean: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    gate_up: Tensor | ScaledTensor | None = None
    x_transposed: ScaledTensor | None = None
    h_transposed: ScaledTensor | None = None
    first: _Weight = _Weight()
    second: _Weight = _Weight()


class _Chain(torch.autograd.Function):
    """run() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Any:
        inputs: _Inputs = layout.record(tensors)
        first, second, chain, dtype = inputs[4:]
        needs = _needs(layout, ctx)
        made = compute(*inputs, keep_x=needs.first, keep_gate_up=needs.gate_up, keep_h=needs.second)
        kept = _Kept(x_transposed=made.x_transposed, h_transposed=made.h_transposed)
        high = chain.recipe.grad_weight is None
        if chain.norm is not None and (needs.x or (needs.first and high)):
            kept = kept._replace(x=made.x, rstd=made.rstd, mean=made.mean)
            kept = kept._replace(norm_weight=inputs.norm_weight, norm_bias=inputs.norm_bias)
        elif needs.first and high:
            kept = kept._replace(x=made.x.to(dtype))
        if needs.gate_up or (needs.second and high):
            kept = kept._replace(gate_up=_as_it_waits(made.gate_up, chain))
        if needs.x:
            kept = kept._replace(first=_weight_of(first))
        if needs.gate_up and second is not None:
            kept = kept._replace(second=_weight_of(second))
        save(ctx, kept)
        ctx.layout, ctx.chain, ctx.dtype = layout, chain, dtype
        ctx.x_dtype, ctx.x_shape = inputs.x.dtype, inputs.x.shape
        ctx.norm_dtypes = _dtype(inputs.norm_weight), _dtype(inputs.norm_bias)
        ctx.first, ctx.second = _Targets.of(first), None if second is None else _Targets.of(second)
        return made.y if inputs.residual is None else (made.y, made.x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        chain: Chain = ctx.chain
        refuse_in_backward(chain.name, dy)
        recipe, dtype, (entry, exit) = chain.recipe, ctx.dtype, sides_of(chain.sides)
        needs, kept = _needs(ctx.layout, ctx), saved(ctx)
        d_second = d_second_bias = dx = d_norm = d_norm_bias = None
        d_first: tuple[Tensor | None, ...] = ()
        d_bias: Tensor | None = None
        own = dy = walkable(dy)
        if chain.activation is None:
            wanted = needs.x, needs.first, needs.first_bias
        else:
            wanted = needs.gate_up, needs.second, needs.second_bias
        casts = cast_gradient(dy, recipe, *wanted, boundary=exit)
        if (wanted[0] and recipe.grad_input is None) or (wanted[1] and recipe.grad_weight is None):
            dy = exit.whole(dy, dy.shape)
        d: Tensor | None = dy  # by what the first layer puts out
        if chain.activation is not None:
            if needs.second:
                h = _activation_of(kept, chain, dtype) if recipe.grad_weight is None else None
                d_second = ctx.second.gradients(dy, casts, h, kept.h_transposed, recipe)
            if needs.second_bias:
                d_second_bias = bias_gradient(own, casts.sums, ctx.second.bias_dtype, exit)
            if needs.gate_up:
                weights, transposed = kept.second
                dh = input_gradient(dy, casts.rows, weights, transposed, recipe, dtype)
                d, casts = _through_activation(dh, kept.gate_up, chain, needs)
        if needs.first:
            x = _normed_of(kept, chain, dtype) if recipe.grad_weight is None else None
            x = entry.whole(x, ctx.x_shape)
            x_transposed = entry.whole(kept.x_transposed, ctx.x_shape)
            d_first = ctx.first.gradients(d, casts, x, x_transposed, recipe)
        if needs.first_bias:
            of, leaves = (own, exit) if chain.activation is None else (d, HERE)
            d_bias = bias_gradient(of, casts.sums, ctx.first.bias_dtype, leaves)
        if needs.x:
            weights, transposed = kept.first
            partial = entry.partial_dtype or ctx.x_dtype
            dx = input_gradient(d, casts.rows, weights, transposed, recipe, partial)
            dx = entry.leave(dx, ctx.x_dtype)
            if chain.norm is not None:
                of_sum = None if of_sum is None else walkable(of_sum)
                operands = kept.x, kept.rstd, kept.mean, kept.norm_weight, kept.norm_bias
                dx, d_norm, d_norm_bias, _, _ = norm_gradients(dx, *operands, chain.norm, of_sum)
                dtypes = ctx.norm_dtypes
                d_norm = None if d_norm is None else entry.total(d_norm).to(dtypes[0])
                d_norm_bias = (
                    None if d_norm_bias is None else entry.total(d_norm_bias).to(dtypes[1])
                )
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx,
            x=dx,
            residual=dx,
            norm_weight=d_norm,
            norm_bias=d_norm_bias,
            first=(d_first, d_bias),
            second=(d_second, d_second_bias),
        )
        return gradients


class _Targets(NamedTuple):
    """The places that the gradients of a layer go to."""

    rows: tuple[int, ...]
    """The number of rows of each weight."""
    dtypes: tuple[torch.dtype, ...]
    bias_dtype: torch.dtype | None
    main_grads: tuple[Tensor | None, ...]
    weights: tuple[Tensor | None, ...]
    """The weights that have a main_grad."""

    @staticmethod
    def of(layer: Layer) -> "_Targets":
        weights, main_grads = layer.weights, layer.main_grads or (None,) * len(layer.weights)
        return _Targets(
            tuple(weight.shape[0] for weight in weights),
            tuple(weight.dtype for weight in weights),
            _dtype(layer.bias),
            main_grads,
            tuple(
                None if main_grad is None else weight
                for weight, main_grad in zip(weights, main_grads, strict=True)
            ),
        )

    def gradients(
        self,
        dy: Tensor | None,
        casts: AnyCasts,
        x: Tensor | None,
        x_transposed: ScaledTensor | None,
        recipe: Recipe,
    ) -> tuple[Tensor | None, ...]:
        """dYᵀ · x for each weight; None where it was added to a main_grad."""
        operands = dy, casts.transposed, x, x_transposed, recipe
        if len(self.rows) == 1:
            made = [weight_gradient(*operands, self.dtypes[0], self.main_grads[0])]
        else:
            is_added = any(main_grad is not None for main_grad in self.main_grads)
            whole = weight_gradient(*operands, torch.float32 if is_added else self.dtypes[0])
            rows = list(self.rows)
            parts = zip(torch.split(whole, rows), self.main_grads, self.dtypes, strict=True)
            made = [
                part.to(dtype) if main_grad is None else main_grad.add_(part)
                for part, main_grad, dtype in parts
            ]
        for weight in self.weights:
            if weight is not None:
                mark_gradient(weight)
        return tuple(
            gradient if weight is None else None
            for gradient, weight in zip(made, self.weights, strict=True)
        )


def _needs(layout: Layout, ctx: Any) -> _Needs:
    needs: _Inputs = layout.needs(ctx)
    first, second = needs.first, needs.second
    of_second = (False, False) if not second else (any(second.weights), bool(second.bias))
    of_x = needs.x or needs.residual or needs.norm_weight or needs.norm_bias
    return _Needs(bool(of_x), any(first.weights), bool(first.bias), *of_second)


def _dtype(tensor: Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _weight_of(layer: Layer) -> _Weight:
    transposed = layer.casts[1]
    return _Weight(layer.weights) if transposed is None else _Weight((), transposed)


def _as_it_waits(gate_up: Tensor | None, chain: Chain) -> Tensor | ScaledTensor | None:
    """The input of the activation, as it is kept for backward."""
    if gate_up is None or not chain.keep_fp8:
        return gate_up
    assert chain.recipe.output is not None
    return quantize(gate_up, Format(granularity=_KEPT, rule=chain.recipe.output.a.rule))


def _wide(x: Tensor | ScaledTensor, dtype: torch.dtype) -> Tensor:
    """In high precision: of FP8 the values, in this dtype."""
    wide: Tensor = x.dequantize(dtype) if isinstance(x, ScaledTensor) else x
    return wide


def _activation_of(kept: _Kept, chain: Chain, dtype: torch.dtype) -> Tensor:
    assert chain.activation is not None
    assert kept.gate_up is not None
    return activated(_wide(kept.gate_up, dtype), chain.activation)


def _normed_of(kept: _Kept, chain: Chain, dtype: torch.dtype) -> Tensor:
    """The input of the first layer, in high precision."""
    assert kept.x is not None
    if chain.norm is None:
        return kept.x
    return normed(kept.x, kept.norm_weight, kept.norm_bias, chain.norm).to(dtype)


def _through_activation(
    dh: Tensor, gate_up: Tensor | ScaledTensor, chain: Chain, needs: _Needs
) -> tuple[Tensor | None, AnyCasts]:
    """The gradient by gate_up: itself, only where it is needed in high precision or there is no
    cast whose sums are the bias's gradient, and its casts."""
    assert chain.activation is not None
    recipe = chain.recipe
    is_cast = gradient_formats(recipe, needs.x, needs.first) != (None, None)
    if (
        (needs.first_bias and not is_cast)
        or (needs.x and recipe.grad_input is None)
        or (needs.first and recipe.grad_weight is None)
    ):
        d = activated_gradient(dh, _wide(gate_up, dh.dtype), chain.activation)
        return d, cast_gradient(d, recipe, needs.x, needs.first, needs.first_bias)
    return None, cast_activation_gradient(
        dh, gate_up, chain.activation, recipe, needs.x, needs.first, needs.first_bias
    )
