"""Experts without products of FP8 with FP8. FP8 weights meet activations of 16 bits, with gradients
by all but the weights; weights in high precision, which are trained, are multiplied by torch where
a GPU has no grouped products of FP8."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import Gathered
from ..._ops.gemm_weight_only import grouped_gemm_weight_only, grouped_gemm_weight_only_gradient
from ..._ops.grouped_gemm import Rows
from ..._ops.routing import Routing, activation_dots, combine, combine_gradient, sort_by_expert
from ..casting.casts import walkable
from ..recipes.kernels import has_bfloat16
from .activated import activated, activated_gradient
from .chain_call import Before, Chain, Layer
from .functions import Layout, differentiates, flatten, refuse_in_backward, save, saved
from .main_grad import mark_gradient
from .products import addable, as_matrix


def weight_only_experts(
    chain: Chain, before: Before, layers: tuple[Layer, Layer], dtype: torch.dtype
) -> Tensor:
    """[..., hidden] in this dtype. Nothing is cast to FP8: rows are read where the tokens lie, and
    are of `dtype`; for a `dtype` of float32 they are rounded to bfloat16 (float16 where a GPU's
    tensor cores have no bfloat16), and results are not."""
    half = dtype
    if half == torch.float32:
        half = torch.bfloat16 if has_bfloat16(before.x.device) else torch.float16
    x, weights, ids = before.routed()
    x = x.to(half)
    routing = sort_by_expert(ids, layers[0].shape[0])
    inputs = _Inputs(x, weights, ids, routing, layers, chain, dtype)
    if differentiates(chain.name, x, weights, layers[0].bias, layers[1].bias):
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
    layers: tuple[Layer, Layer]
    chain: Chain
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
    x, weights, _, (offsets, sources, positions), (first, second), chain, dtype = inputs
    rows, groups = Gathered(as_matrix(x), sources, slots=positions.shape[-1]), Rows(offsets)
    assert chain.activation is not None
    how: dict[str, Any] = {"batch_invariant": chain.recipe.batch_invariant}
    bias = addable(first.bias, x.dtype)
    gate_up: Tensor = grouped_gemm_weight_only(rows, first.rows, groups, bias=bias, **how)
    h = activated(gate_up, chain.activation)
    how |= {"bias": addable(second.bias, dtype), "out_dtype": dtype}
    y: Tensor = grouped_gemm_weight_only(h, second.rows, groups, **how)
    return combine(y, positions, weights), gate_up


class _WeightOnly(torch.autograd.Function):
    """weight_only_experts() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        x, weights, ids, routing, (first, second), chain, dtype = inputs
        needs = layout.needs(ctx)
        out, gate_up = _forward(inputs)
        goes_back = bool(needs.x or needs.weights or needs.layers[0].bias)
        kept = _Kept(
            routing,
            weights,
            ids,
            gate_up if goes_back else None,
            first.rows if needs.x else None,
            second.rows if goes_back else None,
            addable(second.bias, dtype) if needs.weights else None,
        )
        save(ctx, kept)
        ctx.layout, ctx.chain, ctx.x_dtype = layout, chain, x.dtype
        ctx.bias_dtypes = [None if of.bias is None else of.bias.dtype for of in (first, second)]
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward(ctx.chain.name, dy)
        kept: _Kept = saved(ctx)
        needs, activation = ctx.layout.needs(ctx), ctx.chain.activation
        of_first, of_second = (layer.bias for layer in needs.layers)
        offsets, sources, positions = kept.routing
        product = functools.partial(
            grouped_gemm_weight_only_gradient,
            groups=Rows(offsets),
            batch_invariant=ctx.chain.recipe.batch_invariant,
        )
        dx = d_weights = d_first_bias = d_second_bias = None
        dy = walkable(dy)
        if of_second:
            sums = expert_sums(dy, kept.ids, kept.weights, offsets)
            d_second_bias = sums.to(ctx.bias_dtypes[1])
        if kept.gate_up is not None:
            rows = Gathered(as_matrix(dy.to(ctx.x_dtype)), sources, slots=positions.shape[-1])
            assert kept.second is not None
            dh: Tensor = product(rows, kept.second)
            if needs.weights:
                d_weights = activation_dots(dh, kept.gate_up, positions, activation=activation)
                if kept.second_bias is not None:
                    d_weights += combine_gradient(dy, kept.second_bias, kept.ids)
            d = activated_gradient(dh, kept.gate_up, activation) if needs.x or of_first else dh
            if of_first:
                sums = group_sums(d, kept.routing, kept.weights)
                d_first_bias = sums.to(ctx.bias_dtypes[0])
            if needs.x:
                assert kept.first is not None
                dx = combine(product(d, kept.first), positions, kept.weights)
        layers = (None, d_first_bias), (None, d_second_bias)
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx, x=dx, weights=d_weights, layers=layers
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
    chain: Chain, before: Before, layers: tuple[Layer, Layer], dtype: torch.dtype
) -> Tensor:
    """[..., hidden] in this dtype, by torch's own grouped product: on some GPUs it waits for the
    sizes of the groups, so that no CUDA graph can hold it."""
    x, weights, ids = before.routed()
    offsets, sources, positions = sort_by_expert(ids, layers[0].shape[0])
    slots = positions.shape[-1]
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    x = x.to(dtype).reshape(-1, x.shape[-1])
    rows = torch.where(is_used, x.index_select(0, sources.clamp(min=0) // slots), 0)
    assert chain.activation is not None
    for layer in layers:
        rows = rows if layer is layers[0] else activated(rows, chain.activation)
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
