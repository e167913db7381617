"""A chain of linear layers, a norm and an activation, with a gradient."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.quantize import quantize
from ..casting.casts import walkable
from ..recipes.recipe import Recipe
from .activated import activated, activated_gradient, cast_activation_gradient
from .chain import Chain, Layer, compute
from .first_order import refuse_in_backward, refuse_transforms
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
    layers = (first,) if second is None else (first, second)
    before = (x, residual, norm_weight, norm_bias)
    if torch.is_grad_enabled() and (
        any(t is not None and t.requires_grad for t in before)
        or any(layer.needs_gradient() for layer in layers)
    ):
        none: tuple[Tensor | None, ...] = (None, None)
        also_first = first.weights[1] if len(first.weights) > 1 else None
        operands: tuple[Tensor | None, ...]
        operands = *before, first.weights[0], also_first, first.bias
        operands += none if second is None else (second.weights[0], second.bias)
        for layer in (first, second):
            for codes in (None, None) if layer is None else layer.casts:
                operands += none if codes is None else (codes.data, codes.scale)
        main_grads = *first.main_grads, *[None] * (2 - len(first.main_grads))
        main_grads += (None,) if second is None or not second.main_grads else second.main_grads
        refuse_transforms(chain.name)
        results = _Chain.apply(*operands, *main_grads, chain, dtype)  # type: ignore[no-untyped-call]
        y, total = (results, x) if residual is None else results
    else:
        kept = compute(x, residual, norm_weight, norm_bias, first, second, chain, dtype)
        y, total = kept.y, kept.x
    return (y[0], total[0]) if is_vector else (y, total)


class _Needs(NamedTuple):
    """What is to be differentiated."""

    x: bool
    """Or the residual, or what the norm has."""
    first: bool
    first_bias: bool
    second: bool
    second_bias: bool

    @property
    def gate_up(self) -> bool:
        return self.x or self.first or self.first_bias


class _Saved(NamedTuple):
    """What backward works with, as far as it needs it."""

    x: Tensor | None = None
    rstd: Tensor | None = None
    mean: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    gate_up: Tensor | None = None
    gate_up_scale: Tensor | None = None
    """Where it is kept in FP8."""
    x_codes: Tensor | None = None
    """Transposed."""
    x_scale: Tensor | None = None
    h_codes: Tensor | None = None
    """Transposed."""
    h_scale: Tensor | None = None
    first: Tensor | None = None
    """Where there is no cast of it."""
    also_first: Tensor | None = None
    first_codes: Tensor | None = None
    """Transposed."""
    first_scale: Tensor | None = None
    second: Tensor | None = None
    """Where there is no cast of it."""
    second_codes: Tensor | None = None
    """Transposed."""
    second_scale: Tensor | None = None


class _Chain(torch.autograd.Function):
    """run() where something is to be differentiated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        first_weight: Tensor,
        also_first: Tensor | None,
        first_bias: Tensor | None,
        second_weight: Tensor | None,
        second_bias: Tensor | None,
        first_rows: Tensor,
        first_rows_scale: Tensor,
        first_codes: Tensor | None,
        first_scale: Tensor | None,
        second_rows: Tensor | None,
        second_rows_scale: Tensor | None,
        second_codes: Tensor | None,
        second_scale: Tensor | None,
        main_grad_of_first: Tensor | None,
        main_grad_of_also: Tensor | None,
        main_grad_of_second: Tensor | None,
        chain: Chain,
        dtype: torch.dtype,
    ) -> Tensor | tuple[Tensor, Tensor]:
        recipe = chain.recipe
        needs = _needs(ctx)
        weights = (first_weight,) if also_first is None else (first_weight, also_first)
        first = Layer(weights, first_bias, (_rows(first_rows, first_rows_scale, recipe), None))
        second = None
        if second_weight is not None:
            of_second = _rows(second_rows, second_rows_scale, recipe), None
            second = Layer((second_weight,), second_bias, of_second)
        made = compute(
            *(x, residual, norm_weight, norm_bias, first, second, chain, dtype),
            needs.first,
            needs.gate_up,
            needs.second,
        )
        saved = _Saved()
        high = recipe.grad_weight is None
        if chain.norm is not None and (needs.x or (needs.first and high)):
            saved = saved._replace(x=made.x, rstd=made.rstd, mean=made.mean)
            saved = saved._replace(norm_weight=norm_weight, norm_bias=norm_bias)
        elif needs.first and high:
            saved = saved._replace(x=made.x.to(dtype))
        if needs.gate_up or (needs.second and high):
            gate_up, scale = _kept(made.gate_up, chain)
            saved = saved._replace(gate_up=gate_up, gate_up_scale=scale)
        if made.x_transposed is not None:
            codes, scale = made.x_transposed.data, made.x_transposed.scale
            saved = saved._replace(x_codes=codes, x_scale=scale)
        if made.h_transposed is not None:
            codes, scale = made.h_transposed.data, made.h_transposed.scale
            saved = saved._replace(h_codes=codes, h_scale=scale)
        if needs.x and first_codes is None:
            saved = saved._replace(first=first_weight, also_first=also_first)
        elif needs.x:
            saved = saved._replace(first_codes=first_codes, first_scale=first_scale)
        if needs.gate_up and second_codes is None:
            saved = saved._replace(second=second_weight)
        elif needs.gate_up:
            saved = saved._replace(second_codes=second_codes, second_scale=second_scale)
        ctx.save_for_backward(*saved)
        ctx.chain, ctx.dtype, ctx.x_dtype = chain, dtype, x.dtype
        ctx.rows_of_first = first_weight.shape[0]
        ctx.main_grads = main_grad_of_first, main_grad_of_also, main_grad_of_second
        ctx.weights = (
            None if main_grad_of_first is None else first_weight,
            None if main_grad_of_also is None else also_first,
            None if main_grad_of_second is None else second_weight,
        )
        ctx.dtypes = _dtypes(norm_weight, norm_bias, first_weight, also_first, first_bias)
        ctx.dtypes += _dtypes(second_weight, second_bias)
        return made.y if residual is None else (made.y, made.x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        chain, dtype = ctx.chain, ctx.dtype
        refuse_in_backward(chain.name, dy)
        recipe, needs, saved = chain.recipe, _needs(ctx), _Saved(*ctx.saved_tensors)
        of_norm, of_norm_bias, of_first, of_also, of_bias, of_second, of_second_bias = ctx.dtypes
        to_first, to_also, to_second = ctx.main_grads
        d_norm = d_norm_bias = d_first = d_also = d_bias = d_second = d_second_bias = None
        dy = walkable(dy)
        d: Tensor | None = dy  # by what the first layer puts out
        if chain.activation is None:
            casts = cast_gradient(dy, recipe, needs.x, needs.first, needs.first_bias)
        else:
            casts = cast_gradient(dy, recipe, needs.gate_up, needs.second, needs.second_bias)
            if needs.second:
                h = _activation_of(saved, chain, dtype) if recipe.grad_weight is None else None
                h_transposed = _columns(saved.h_codes, saved.h_scale, recipe)
                d_second = weight_gradient(
                    dy, casts[1], h, h_transposed, recipe, of_second, to_second
                )
            if needs.second_bias:
                d_second_bias = bias_gradient(dy, casts.sums, of_second_bias)
            if needs.gate_up:
                transposed = _transposed(saved.second_codes, saved.second_scale, recipe)
                dh = input_gradient(dy, casts[0], (saved.second,), transposed, recipe, dtype)
                d, casts = _through_activation(dh, _gate_up_of(saved), chain, needs)
        if needs.first:
            x = _normed_of(saved, chain, dtype) if recipe.grad_weight is None else None
            x_transposed = _columns(saved.x_codes, saved.x_scale, recipe)
            if of_also is None:
                d_first = weight_gradient(d, casts[1], x, x_transposed, recipe, of_first, to_first)
            else:
                whole = weight_gradient(
                    d, casts[1], x, x_transposed, recipe, _widest(ctx.main_grads, of_first)
                )
                d_first = _added(whole[: ctx.rows_of_first], to_first, of_first)
                d_also = _added(whole[ctx.rows_of_first :], to_also, of_also)
        if needs.first_bias:
            d_bias = bias_gradient(d, casts.sums, of_bias)
        dx = None
        if needs.x:
            transposed = _transposed(saved.first_codes, saved.first_scale, recipe)
            weights = saved.first, saved.also_first
            dx = input_gradient(d, casts[0], weights, transposed, recipe, ctx.x_dtype)
            if chain.norm is not None:
                of_sum = None if of_sum is None else walkable(of_sum)
                operands = saved.rstd, saved.mean, saved.norm_weight, saved.norm_bias
                dx, d_norm, d_norm_bias, _, _ = norm_gradients(
                    dx, saved.x, *operands, chain.norm, of_sum
                )
                d_norm = None if d_norm is None else d_norm.to(of_norm)
                d_norm_bias = None if d_norm_bias is None else d_norm_bias.to(of_norm_bias)
        gradients = (dx, dx, d_norm, d_norm_bias, d_first, d_also, d_bias, d_second, d_second_bias)
        needed = [*ctx.needs_input_grad[:9]]
        for index, weight in zip((4, 5, 7), ctx.weights, strict=True):
            if needed[index] and weight is not None:
                mark_gradient(weight)
                needed[index] = False
        wanted = zip(gradients, needed, strict=True)
        return *[g if is_needed else None for g, is_needed in wanted], *[None] * 13


def _widest(main_grads: tuple[Tensor | None, ...], dtype: torch.dtype) -> torch.dtype:
    """Of a product whose parts are added to some of these, or go out as `dtype`."""
    to_first, to_also, _ = main_grads
    return dtype if to_first is None and to_also is None else torch.float32


def _added(part: Tensor, main_grad: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A weight's gradient; where there is a main_grad, that with it added."""
    return part.to(dtype) if main_grad is None else main_grad.add_(part)


def _needs(ctx: Any) -> _Needs:
    needs = ctx.needs_input_grad
    return _Needs(any(needs[:4]), needs[4] or needs[5], needs[6], needs[7], needs[8])


def _dtypes(*tensors: Tensor | None) -> tuple[torch.dtype | None, ...]:
    return tuple(None if tensor is None else tensor.dtype for tensor in tensors)


def _rows(codes: Tensor | None, scale: Tensor | None, recipe: Recipe) -> ScaledTensor | None:
    """Of a weight, for the output."""
    if codes is None or recipe.output is None:
        return None
    return ScaledTensor(codes, scale, recipe.output.b.granularity)


def _transposed(codes: Tensor | None, scale: Tensor | None, recipe: Recipe) -> ScaledTensor | None:
    """Of a weight, for the gradient of what it multiplies."""
    if codes is None or recipe.grad_input is None:
        return None
    return ScaledTensor(codes, scale, recipe.grad_input.b.granularity)


def _columns(codes: Tensor | None, scale: Tensor | None, recipe: Recipe) -> ScaledTensor | None:
    """Of what a weight multiplies, for the weight's gradient."""
    if codes is None or recipe.grad_weight is None:
        return None
    return ScaledTensor(codes, scale, recipe.grad_weight.b.granularity)


def _kept(gate_up: Tensor | None, chain: Chain) -> tuple[Tensor | None, Tensor | None]:
    """What the activation's gradient is worked out from, as it waits for that; scales, if any."""
    if gate_up is None or not chain.keep_fp8:
        return gate_up, None
    assert chain.recipe.output is not None
    codes = quantize(gate_up, Format(granularity=_KEPT, rule=chain.recipe.output.a.rule))
    return codes.data, codes.scale


def _gate_up_of(saved: _Saved) -> Tensor | ScaledTensor:
    assert saved.gate_up is not None
    if saved.gate_up_scale is None:
        return saved.gate_up
    return ScaledTensor(saved.gate_up, saved.gate_up_scale, _KEPT)


def _wide(x: Tensor | ScaledTensor, dtype: torch.dtype) -> Tensor:
    """In high precision: of FP8 the values, in this dtype."""
    wide: Tensor = x.dequantize(dtype) if isinstance(x, ScaledTensor) else x
    return wide


def _activation_of(saved: _Saved, chain: Chain, dtype: torch.dtype) -> Tensor:
    assert chain.activation is not None
    return activated(_wide(_gate_up_of(saved), dtype), chain.activation)


def _normed_of(saved: _Saved, chain: Chain, dtype: torch.dtype) -> Tensor:
    """What the first layer had as its input, in high precision."""
    assert saved.x is not None
    if chain.norm is None:
        return saved.x
    return normed(saved.x, saved.norm_weight, saved.norm_bias, chain.norm).to(dtype)


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
