"""Experts without products of FP8 with FP8. FP8 weights meet activations of 16 bits, with gradients
by all but the weights; weights in high precision, which are trained, are multiplied by torch where
a GPU has no grouped products of FP8."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import Gathered
from ..._ops.gemm_weight_only import grouped_gemm_weight_only, grouped_gemm_weight_only_gradient
from ..._ops.grouped_gemm import Rows
from ..._ops.routing import Routing, activation_dots, combine, combine_gradient, sort_by_expert
from ..casting.casts import walkable
from ..recipes.kernels import has_bfloat16
from .activated import activated, activated_gradient
from .chain_call import Before, Layer
from .functions import Layout, differentiates, flatten, refuse_in_backward, save, saved
from .main_grad import mark_gradient
from .products import addable, as_matrix


def weight_only_experts(
    before: Before,
    first: Layer,
    second: Layer,
    activation: str,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """[..., hidden] in this dtype. Nothing is cast to FP8: rows are read where the tokens lie, and
    are of `dtype`; for a `dtype` of float32 they are rounded to bfloat16 (float16 where a GPU's
    tensor cores have no bfloat16), and results are not."""
    half = dtype
    if half == torch.float32:
        half = torch.bfloat16 if has_bfloat16(before.x.device) else torch.float16
    x, weights, ids = before.routed()
    x = x.to(half)
    routing = sort_by_expert(ids, first.shape[0])
    inputs = _Inputs(x, weights, ids, routing, first, second, activation, recipe, dtype)
    if differentiates("experts", x, weights, first.bias, second.bias):
        layout, tensors = flatten(inputs)
        out: Tensor = _WeightOnly.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        return out
    return _forward(inputs)[0]


class _Inputs(NamedTuple):
    x: Tensor
    """In 16 bits."""
    weights: Tensor
    ids: Tensor
    routing: Routing
    first: Layer
    second: Layer
    activation: str
    recipe: Recipe
    dtype: torch.dtype


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    routing: Routing
    weights: Tensor
    ids: Tensor
    gate_up: Tensor | None
    """Rows of the first product."""
    first: ScaledTensor | None
    second: ScaledTensor | None
    second_bias: Tensor | None


def _forward(inputs: _Inputs) -> tuple[Tensor, Tensor]:
    """The result, and the rows of the first product."""
    x, dtype = inputs.x, inputs.dtype
    first, second = inputs.first.rows, inputs.second.rows
    offsets, sources, positions = inputs.routing
    rows = Gathered(as_matrix(x), sources, slots=positions.shape[-1])
    bias = addable(inputs.first.bias, x.dtype)
    invariant = inputs.recipe.batch_invariant
    gate_up: Tensor = grouped_gemm_weight_only(
        rows, first, Rows(offsets), bias=bias, batch_invariant=invariant
    )
    h = activated(gate_up, inputs.activation)
    bias = addable(inputs.second.bias, dtype)
    y: Tensor = grouped_gemm_weight_only(
        h, second, Rows(offsets), bias=bias, out_dtype=dtype, batch_invariant=invariant
    )
    return combine(y, positions, inputs.weights), gate_up


class _WeightOnly(torch.autograd.Function):
    """weight_only_experts() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        needs = layout.needs(ctx)
        out, gate_up = _forward(inputs)
        goes_back = bool(needs.x or needs.weights or needs.first.bias)
        kept = _Kept(
            inputs.routing,
            inputs.weights,
            inputs.ids,
            gate_up if goes_back else None,
            inputs.first.rows if needs.x else None,
            inputs.second.rows if goes_back else None,
            addable(inputs.second.bias, inputs.dtype) if needs.weights else None,
        )
        save(ctx, kept)
        ctx.layout, ctx.activation, ctx.x_dtype = layout, inputs.activation, inputs.x.dtype
        ctx.product = functools.partial(
            grouped_gemm_weight_only_gradient, batch_invariant=inputs.recipe.batch_invariant
        )
        biases = inputs.first.bias, inputs.second.bias
        ctx.bias_dtypes = tuple(None if bias is None else bias.dtype for bias in biases)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        kept: _Kept = saved(ctx)
        needs = ctx.layout.needs(ctx)
        offsets, sources, positions = kept.routing
        half, (first_dtype, second_dtype) = ctx.x_dtype, ctx.bias_dtypes
        dx = d_weights = d_first_bias = d_second_bias = None
        dy = walkable(dy)
        if needs.second.bias:
            d_second_bias = expert_sums(dy, kept.ids, kept.weights, offsets).to(second_dtype)
        if kept.gate_up is not None:
            rows = Gathered(as_matrix(dy.to(half)), sources, slots=positions.shape[-1])
            assert kept.second is not None
            dh: Tensor = ctx.product(rows, kept.second, Rows(offsets))
            if needs.weights:
                d_weights = activation_dots(dh, kept.gate_up, positions, activation=ctx.activation)
                if kept.second_bias is not None:
                    d_weights += combine_gradient(dy, kept.second_bias, kept.ids)
            goes_further = needs.x or needs.first.bias
            d = activated_gradient(dh, kept.gate_up, ctx.activation) if goes_further else dh
            if needs.first.bias:
                d_first_bias = group_sums(d, kept.routing, kept.weights).to(first_dtype)
            if needs.x:
                assert kept.first is not None
                dx = ctx.product(d, kept.first, Rows(offsets))
                dx = combine(dx, positions, kept.weights)
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx, x=dx, weights=d_weights, first=(None, d_first_bias), second=(None, d_second_bias)
        )
        return gradients


def expert_sums(dy: Tensor, ids: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """[experts, out]: the gradient by each expert's result, summed over its tokens."""
    dy, ids, weights = dy.flatten(0, -2), ids.flatten(0, -2), weights.flatten(0, -2)
    numbers = torch.arange(offsets.shape[0] - 1, dtype=ids.dtype, device=ids.device)
    shares = ((ids.unsqueeze(-1) == numbers) * weights.unsqueeze(-1)).sum(1)
    dy = torch.where((ids >= 0).any(1, keepdim=True), dy, 0)  # no token may be any number
    return shares.t().to(dy.dtype) @ dy


def group_sums(x: Tensor, routing: Routing, weights: Tensor) -> Tensor:
    """[experts, cols]: rows of x [rows, cols] times their weights of the routing, summed; those
    behind the last are not looked at."""
    offsets, sources, _ = routing
    rows = torch.arange(x.shape[0], dtype=offsets.dtype, device=x.device)
    belongs = (rows >= offsets[:-1, None]) & (rows < offsets[1:, None])
    shares = belongs * weights.flatten().index_select(0, sources.clamp(min=0))
    sums: Tensor = shares.to(x.dtype) @ torch.where((rows < offsets[-1]).unsqueeze(-1), x, 0)
    return sums


def wide_experts(
    before: Before,
    first: Layer,
    second: Layer,
    activation: str,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """[..., hidden] in this dtype, by torch's own grouped product: on some GPUs it waits for the
    sizes of the groups, so that no CUDA graph can hold it."""
    x, weights, ids = before.routed()
    offsets, sources, positions = sort_by_expert(ids, first.shape[0])
    slots = positions.shape[-1]
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    x = x.to(dtype).reshape(-1, x.shape[-1])
    rows = torch.where(is_used, x.index_select(0, sources.clamp(min=0) // slots), 0)
    for layer in (first, second):
        rows = rows if layer is first else activated(rows, activation)
        products = _grouped(rows, _weight_of(layer, dtype).transpose(1, 2), offsets[1:])
        if layer.bias is not None:
            bias = layer.bias.float().index_select(0, owners)  # whose gradient is a sum
            products = (products + bias).to(dtype)
        rows = torch.where(is_used, products, 0)
    taken = rows.index_select(0, positions.clamp(min=0).flatten())
    taken = taken.view(*positions.shape, rows.shape[1])
    shares = torch.where(positions >= 0, weights, 0).unsqueeze(-1)
    return (taken.float() * shares).sum(-2).to(dtype)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of each group by its own weights [in, out]."""
    product: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    result: Tensor = product(rows, weights, offs=ends)
    return result


def _weight_of(layer: Layer, dtype: torch.dtype) -> Tensor:
    if not layer.weights:
        wide: Tensor = layer.rows.dequantize(dtype)
        return wide
    (weight,), (main_grad,) = layer.weights, layer.main_grads
    if main_grad is not None:
        weight = _ToMainGrad.apply(weight, main_grad)  # type: ignore[no-untyped-call]
    return weight.to(dtype)


class _ToMainGrad(torch.autograd.Function):
    """A weight whose gradient is added to its main_grad."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, main_grad: Tensor) -> Tensor:
        ctx.weight, ctx.main_grad = weight, main_grad
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("experts", gradient)
        ctx.main_grad.add_(gradient)
        mark_gradient(ctx.weight)
        return None, None
