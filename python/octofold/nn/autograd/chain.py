"""Linear layers and what is fused with them, as chains with a gradient: what is computed, and with
which casts."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import Activated
from ..._ops.gated_gemm import gated_gemm
from ..._ops.quantize import quantize
from ..casting.casts import cast_as_wanted, cast_weight, joined, walkable
from .activated import activated, activated_gradient, cast_activation_gradient, gated_in_one
from .boundary import ONE_PROCESS, sides_of
from .chain_call import Before, Chain, Layer
from .functions import (
    Layout,
    differentiates,
    flatten,
    refuse_in_backward,
    result_dtype,
    save,
    saved,
)
from .in_graph import fused
from .main_grad import GradientTargets
from .normed import norm_gradients, norm_source, normed
from .products import (
    bias_gradient,
    cast_gradient,
    gradient_formats,
    input_gradient,
    output_product,
)


class _Inputs(NamedTuple):
    """A chain's arguments that fit."""

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

    x: bool = False
    """Also for the residual and the operands of the norm."""
    first: bool = False
    """For any of its weights."""
    first_bias: bool = False
    second: bool = False
    second_bias: bool = False

    @property
    def gate_up(self) -> bool:
        return self.x or self.first or self.first_bias


class _Made(NamedTuple):
    """The output of forward, and the intermediate values that backward may need."""

    y: Tensor
    x: Tensor
    """The tensor that was normed, any residual added, or, without a norm, cast."""
    rstd: Tensor | None
    mean: Tensor | None
    x_transposed: ScaledTensor | None
    gate_up: Tensor | None
    """None where it was not written."""
    h_transposed: ScaledTensor | None


def _compute(inputs: _Inputs, needs: _Needs) -> _Made:
    """With the transposed casts that the weights' gradients want, and what the activation's
    gradient is worked out from, as far as they are needed."""
    x, residual, norm_weight, norm_bias, first, second, chain, dtype = inputs
    recipe, (entry, _) = chain.recipe, sides_of(chain.sides)
    grad_weight = recipe.grad_weight
    of_rows = None if recipe.output is None else recipe.output.a
    of_x = grad_weight.b if needs.first and grad_weight is not None else None
    of_h = grad_weight.b if needs.second and grad_weight is not None else None
    rstd = mean = gate_up = h_transposed = None
    if chain.norm is None:
        rows, x_transposed, *_ = entry.cast(x, of_rows, of_x)
    else:
        source = norm_source(x, norm_weight, norm_bias, residual, chain.norm)
        rows, x_transposed, _, _, statistics = entry.cast(source, of_rows, of_x)
        assert statistics is not None
        total, rstd, mean = statistics
        x = x if total is None else total
    if chain.activation is None or second is None:
        y = _leaving(x, rows, first, chain, dtype)
        return _Made(y, x, rstd, mean, x_transposed, None, None)
    assert first.casts is not None
    assert recipe.output is not None
    weight, output = first.casts[0], recipe.output
    in_one = gated_in_one(recipe, chain.activation, weight, first.bias, dtype)
    if needs.gate_up or needs.second or not in_one:
        gate_up = output_product(rows, weight, first.bias, recipe, dtype)
        activated = Activated(gate_up, chain.activation)
        h, h_transposed, *_ = cast_as_wanted(activated, output.a, of_h)
    else:
        assert rows is not None
        assert weight is not None
        h = gated_gemm(
            rows,
            weight,
            activation=chain.activation,
            format=output.a,
            batch_invariant=output.batch_invariant,
        )
    y = _leaving(None, h, second, chain, dtype)
    return _Made(y, x, rstd, mean, x_transposed, gate_up, h_transposed)


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
    assert last.casts is not None
    y = output_product(rows, last.casts[0], bias, chain.recipe, exit.partial_dtype or dtype)
    return exit.reduce(y, dtype)


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
    before = Before(x, residual, norm_weight, norm_bias)
    layers = (first,) if second is None else (first, second)
    results = None
    if chain.sides is None:
        results = fused(chain, before, layers, dtype)
    y, total = results or _by_casts_and_products(before, layers, chain, dtype)
    return (y[0], total[0]) if is_vector else (y, total)


def _by_casts_and_products(
    before: Before, layers: tuple[Layer, ...], chain: Chain, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    both = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in before)
    with_casts = []
    for layer in layers:
        if layer.casts is None:
            casts = cast_weight(joined(layer.weights), chain.recipe, True, both)
            layer = layer._replace(casts=casts)
        with_casts.append(layer)
        both = both or (torch.is_grad_enabled() and layer.needs_gradient())
    first, *others = with_casts
    inputs = _Inputs(*before[:4], first, others[0] if others else None, chain, dtype)
    parameters = (t for layer in layers for t in layer.parameters())
    if not differentiates(chain.name, *before, *parameters):
        made = _compute(inputs, _Needs())
        return made.y, made.x
    layout, tensors = flatten(inputs)
    results = _Chain.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    return (results, before.x) if before.residual is None else results


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
        made = _compute(inputs, needs)
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
        ctx.first, ctx.second = _targets_of(first), None if second is None else _targets_of(second)
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
            dy = exit.gather(dy, dy.shape)
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
            x = entry.gather(x, ctx.x_shape)
            x_transposed = entry.gather(kept.x_transposed, ctx.x_shape)
            d_first = ctx.first.gradients(d, casts, x, x_transposed, recipe)
        if needs.first_bias:
            of, leaves = (own, exit) if chain.activation is None else (d, ONE_PROCESS)
            d_bias = bias_gradient(of, casts.sums, ctx.first.bias_dtype, leaves)
        if needs.x:
            weights, transposed = kept.first
            partial = entry.partial_dtype or ctx.x_dtype
            dx = input_gradient(d, casts.rows, weights, transposed, recipe, partial)
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


def _needs(layout: Layout, ctx: Any) -> _Needs:
    needs: _Inputs = layout.needs(ctx)
    first, second = needs.first, needs.second
    of_second = (False, False) if not second else (any(second.weights), bool(second.bias))
    of_x = needs.x or needs.residual or needs.norm_weight or needs.norm_bias
    return _Needs(bool(of_x), any(first.weights), bool(first.bias), *of_second)


def _dtype(tensor: Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


def _targets_of(layer: Layer) -> GradientTargets:
    return GradientTargets.of(layer.weights, layer.bias, layer.main_grads)


def _weight_of(layer: Layer) -> _Weight:
    assert layer.casts is not None
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
