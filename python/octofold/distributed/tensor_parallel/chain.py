"""Linear layers and what is fused with them, of which each rank has a part: casts and products one
after another, as ranks cast before they send. (A layer in one process is one call of the library.)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import Activated
from ..._ops.gated_gemm import gated_gemm
from ...nn.autograd.activated import (
    activated,
    activated_gradient,
    as_it_waits,
    cast_activation_gradient,
    gated_in_one,
    wide,
)
from ...nn.autograd.boundary import ONE_PROCESS, sides_of
from ...nn.autograd.functions import (
    Layout,
    differentiates,
    flatten,
    refuse_in_backward,
    save,
    saved,
)
from ...nn.autograd.layer import Before, Chain, Layer, Needs, TransposedWeight, needs_of
from ...nn.autograd.normed import norm_gradients, norm_source, normed
from ...nn.autograd.products import (
    bias_gradient,
    cast_gradient,
    gradient_formats,
    input_gradient,
    output_product,
)
from ...nn.casting.casts import cast_as_wanted, joined, walkable


class _Inputs(NamedTuple):
    """A chain's arguments that fit."""

    before: Before
    layers: tuple[Layer, ...]
    """One or two, with casts."""
    chain: Chain
    dtype: torch.dtype
    """The dtype of the result."""


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
    first: TransposedWeight = TransposedWeight()
    second: TransposedWeight = TransposedWeight()


def _compute(inputs: _Inputs, needs: Needs) -> tuple[Tensor, Tensor, _Kept]:
    """y; what was normed, any residual added, or, without a norm, cast; and what backward needs."""
    before, (first, *others), chain, dtype = inputs
    x, residual, norm_weight, norm_bias, *_ = before
    recipe, (entry, _) = chain.recipe, sides_of(chain.sides)
    grad_weight, is_high = recipe.grad_weight, recipe.grad_weight is None
    of_rows = None if recipe.output is None else recipe.output.a
    of_x = grad_weight.b if needs.first and grad_weight is not None else None
    of_h = grad_weight.b if needs.second and grad_weight is not None else None
    kept = _Kept(first=TransposedWeight.of(first, needs.x))
    if chain.norm is None:
        rows, x_transposed, *_ = entry.cast(x, of_rows, of_x)
        if needs.first and is_high:
            kept = kept._replace(x=x.to(dtype))
    else:
        source = norm_source(x, norm_weight, norm_bias, residual, chain.norm)
        rows, x_transposed, _, _, statistics = entry.cast(source, of_rows, of_x)
        assert statistics is not None
        total, rstd, mean = statistics
        x = x if total is None else total
        if needs.x or (needs.first and is_high):
            kept = kept._replace(x=x, rstd=rstd, mean=mean)
            kept = kept._replace(norm_weight=norm_weight, norm_bias=norm_bias)
    kept = kept._replace(x_transposed=x_transposed)
    if chain.activation is None:
        return _leaving(x, rows, first, chain, dtype), x, kept
    (second,) = others
    assert recipe.output is not None
    weight, output = first.rows(), recipe.output
    in_one = gated_in_one(recipe, chain.activation, weight, first.bias, dtype)
    if needs.gate_up() or needs.second or not in_one:
        gate_up = output_product(rows, weight, first.bias, recipe, dtype)
        h, h_transposed, *_ = cast_as_wanted(Activated(gate_up, chain.activation), output.a, of_h)
        kept = kept._replace(h_transposed=h_transposed)
        kept = kept._replace(second=TransposedWeight.of(second, needs.gate_up()))
        if needs.gate_up() or (needs.second and is_high):
            kept = kept._replace(gate_up=as_it_waits(gate_up, recipe, chain.keep_fp8))
    else:
        assert rows is not None
        h = gated_gemm(
            rows,
            weight,
            activation=chain.activation,
            format=output.a,
            batch_invariant=output.batch_invariant,
        )
    return _leaving(None, h, second, chain, dtype), x, kept


def _leaving(
    x: Tensor | None,
    rows: ScaledTensor | None,
    last: Layer,
    chain: Chain,
    dtype: torch.dtype,
) -> Tensor:
    """The product of the last layer, as it leaves the chain: of x in high precision, else of its
    cast."""
    _, exit = sides_of(chain.sides)
    if chain.recipe.output is None:
        assert x is not None
        bias = None if last.bias is None else last.bias.to(dtype)
        return torch.nn.functional.linear(x.to(dtype), joined(last.weights).to(dtype), bias)
    bias = last.bias if exit.adds_bias else None
    y = output_product(rows, last.rows(), bias, chain.recipe, exit.partial_dtype or dtype)
    return exit.reduce(y, dtype)


def over_ranks(
    chain: Chain, before: Before, layers: tuple[Layer, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Computes what layer_call.in_one_process() does, of this rank's tokens (Sides.compute)."""
    both = torch.is_grad_enabled() and before.needs_gradient()
    with_both = []
    for layer in layers:
        with_both.append(layer.with_casts(chain.recipe, both))
        both = both or (torch.is_grad_enabled() and layer.needs_gradient())
    inputs = _Inputs(before, tuple(with_both), chain, dtype)
    parameters = (t for layer in layers for t in layer.parameters())
    if not differentiates(chain.name, *before, *parameters):
        y, x, _ = _compute(inputs, Needs())
        return y, x
    layout, tensors = flatten(inputs)
    results = _Chain.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    return (results, before.x) if before.residual is None else results


class _Chain(torch.autograd.Function):
    """over_ranks() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Any:
        inputs: _Inputs = layout.record(tensors)
        before, layers, chain, dtype = inputs
        y, x, kept = _compute(inputs, needs_of(layout, ctx))
        save(ctx, kept)
        ctx.layout, ctx.chain, ctx.dtype = layout, chain, dtype
        ctx.x_dtype, ctx.x_shape = before.x.dtype, before.x.shape
        ctx.norm_dtypes = _dtype(before.norm_weight), _dtype(before.norm_bias)
        ctx.targets = [layer.targets() for layer in layers]
        return y if before.residual is None else (y, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_sum: Tensor | None = None) -> tuple[Any, ...]:
        chain: Chain = ctx.chain
        refuse_in_backward(chain.name, dy)
        recipe, dtype, (entry, exit) = chain.recipe, ctx.dtype, sides_of(chain.sides)
        needs, kept = needs_of(ctx.layout, ctx), saved(ctx)
        first, last = ctx.targets[0], ctx.targets[-1]
        d_second = d_second_bias = dx = d_norm = d_norm_bias = None
        d_first: tuple[Tensor | None, ...] = ()
        d_bias: Tensor | None = None
        own = dy = walkable(dy)
        if chain.activation is None:
            wanted = needs.x, needs.first, needs.first_bias
        else:
            wanted = needs.gate_up(), needs.second, needs.second_bias
        casts = cast_gradient(dy, recipe, *wanted, boundary=exit)
        if (wanted[0] and recipe.grad_input is None) or (wanted[1] and recipe.grad_weight is None):
            dy = exit.gather(dy, dy.shape)
        d: Tensor | None = dy  # by what the first layer puts out
        if chain.activation is not None:
            if needs.second:
                h = _activation_of(kept, chain, dtype) if recipe.grad_weight is None else None
                d_second = last.gradients(dy, casts, h, kept.h_transposed, recipe)
            if needs.second_bias:
                d_second_bias = bias_gradient(own, casts.sums, last.bias_dtype, exit)
            if needs.gate_up():
                dh = _input_gradient(dy, casts.rows, kept.second, recipe, dtype)
                d, casts = _through_activation(dh, kept.gate_up, chain, needs)
        if needs.first:
            x = _normed_of(kept, chain, dtype) if recipe.grad_weight is None else None
            x = entry.gather(x, ctx.x_shape)
            x_transposed = entry.gather(kept.x_transposed, ctx.x_shape)
            d_first = first.gradients(d, casts, x, x_transposed, recipe)
        if needs.first_bias:
            of, leaves = (own, exit) if chain.activation is None else (d, ONE_PROCESS)
            d_bias = bias_gradient(of, casts.sums, first.bias_dtype, leaves)
        if needs.x:
            partial = entry.partial_dtype or ctx.x_dtype
            dx = _input_gradient(d, casts.rows, kept.first, recipe, partial)
            dx = entry.reduce(dx, ctx.x_dtype)
            if chain.norm is not None:
                of_sum = None if of_sum is None else walkable(of_sum)
                operands = kept.x, kept.rstd, kept.mean, kept.norm_weight, kept.norm_bias
                dx, d_norm, d_norm_bias, _, _ = norm_gradients(dx, *operands, chain.norm, of_sum)
                dtypes = ctx.norm_dtypes
                d_norm = None if d_norm is None else entry.all_reduce(d_norm).to(dtypes[0])
                d_norm_bias = (
                    None if d_norm_bias is None else entry.all_reduce(d_norm_bias).to(dtypes[1])
                )
        of_before = dx, dx, d_norm, d_norm_bias, None, None
        of_layers = ((d_first, d_bias), (d_second, d_second_bias))[: len(ctx.targets)]
        gradients: tuple[Any, ...] = ctx.layout.gradients(ctx, before=of_before, layers=of_layers)
        return gradients


def _input_gradient(
    dy: Tensor | None,
    dy_rows: ScaledTensor | None,
    weight: TransposedWeight,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    transposed = None if recipe.grad_input is None else weight.made(recipe)
    return input_gradient(dy, dy_rows, weight.weights, transposed, recipe, dtype)


def _dtype(tensor: Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _activation_of(kept: _Kept, chain: Chain, dtype: torch.dtype) -> Tensor:
    assert chain.activation is not None
    assert kept.gate_up is not None
    return activated(wide(kept.gate_up, dtype), chain.activation)


def _normed_of(kept: _Kept, chain: Chain, dtype: torch.dtype) -> Tensor:
    """The input of the first layer, in high precision."""
    assert kept.x is not None
    if chain.norm is None:
        return kept.x
    return normed(kept.x, kept.norm_weight, kept.norm_bias, chain.norm).to(dtype)


def _through_activation(
    dh: Tensor, gate_up: Tensor | ScaledTensor, chain: Chain, needs: Needs
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
        d = activated_gradient(dh, wide(gate_up, dh.dtype), chain.activation)
        return d, cast_gradient(d, recipe, needs.x, needs.first, needs.first_bias)
    return None, cast_activation_gradient(
        dh, gate_up, chain.activation, recipe, needs.x, needs.first, needs.first_bias
    )
