"""Experts with a gradient."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import ActivationGradient, Gathered
from ..._ops.grouped_gemm import grouped_gemm_k
from ..._ops.routing import Routing, combine, combine_gradient, sort_by_expert
from ..casting.casts import cast_as_wanted, cast_weight, walkable
from ..casting.expert_casts import transposed_experts
from ..recipes.recipe import Recipe
from .activated import activated_gradient
from .expert_chain import Projection, compute_experts, grouped_product
from .first_order import refuse_in_backward, refuse_transforms
from .linear import result_dtype
from .main_grad import mark_gradient
from .products import gradient_formats


def run_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    first: Projection,
    second: Projection,
    activation: str,
    recipe: Recipe,
) -> Tensor:
    """experts() of arguments that fit. A transposed cast that is missing backward makes, of the
    weight as it is then."""
    dtype = result_dtype(x)
    rows, _ = first.casts
    assert rows is not None
    count = rows.shape[0]
    is_vector = x.dim() == 1
    if is_vector:
        x, topk_ids, topk_weights = x[None], topk_ids[None], topk_weights[None]
    x = walkable(x)
    if topk_ids.dtype != torch.int32:
        topk_ids = topk_ids.clamp(-2, count).to(torch.int32)  # no other becomes an expert's number
    weights = topk_weights.to(torch.float32)
    routing = sort_by_expert(walkable(topk_ids), count)
    layers = first, second
    if torch.is_grad_enabled() and (
        x.requires_grad
        or weights.requires_grad
        or any(projection.needs_gradient() for projection in layers)
    ):
        operands: tuple[Tensor | None, ...] = (x, weights)
        operands += tuple(layer.weight for layer in layers) + tuple(layer.bias for layer in layers)
        for layer in layers:
            for codes in layer.casts:
                operands += (None, None) if codes is None else (codes.data, codes.scale)
        operands += tuple(layer.main_grad for layer in layers)
        refuse_transforms("experts")
        y: Tensor = _Experts.apply(  # type: ignore[no-untyped-call]
            *operands, topk_ids, *routing, activation, recipe, dtype
        )
    else:
        y = compute_experts(
            x, weights.contiguous(), routing, first, second, activation, recipe, dtype
        ).out
    return y[0] if is_vector else y


class _Needs(NamedTuple):
    """What is to be differentiated."""

    x: bool
    weights: bool
    first: bool
    second: bool
    first_bias: bool
    second_bias: bool

    @property
    def gate_up(self) -> bool:
        return self.x or self.first or self.first_bias


class _Experts(torch.autograd.Function):
    """run_experts() where something is to be differentiated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        first_weight: Tensor | None,
        second_weight: Tensor | None,
        first_bias: Tensor | None,
        second_bias: Tensor | None,
        first_rows: Tensor,
        first_rows_scale: Tensor,
        first_codes: Tensor | None,
        first_scale: Tensor | None,
        second_rows: Tensor,
        second_rows_scale: Tensor,
        second_codes: Tensor | None,
        second_scale: Tensor | None,
        first_main_grad: Tensor | None,
        second_main_grad: Tensor | None,
        ids: Tensor,
        offsets: Tensor,
        sources: Tensor,
        positions: Tensor,
        activation: str,
        recipe: Recipe,
        dtype: torch.dtype,
    ) -> Tensor:
        assert recipe.output is not None
        needs = _Needs(*ctx.needs_input_grad[:6])
        weights = weights.contiguous()
        granularity = recipe.output.b.granularity
        of_first = ScaledTensor(first_rows, first_rows_scale, granularity)
        of_second = ScaledTensor(second_rows, second_rows_scale, granularity)
        made = compute_experts(
            x,
            weights,
            Routing(offsets, sources, positions),
            Projection(None, first_bias, (of_first, None)),
            Projection(None, second_bias, (of_second, None)),
            activation,
            recipe,
            dtype,
            needs.first,
            needs.gate_up,
            needs.second,
        )
        ctx.save_for_backward(
            *(offsets, sources, positions, weights),
            ids if needs.second_bias else None,
            made.y if needs.weights else None,
            made.gate_up if needs.gate_up else None,
            *_parts(made.x_transposed),
            *_parts(made.h_transposed),
            *_kept(needs.x, first_weight, of_first, first_codes, first_scale),
            *_kept(needs.gate_up, second_weight, of_second, second_codes, second_scale),
        )
        ctx.activation, ctx.recipe, ctx.dtype, ctx.x_dtype = activation, recipe, dtype, x.dtype
        ctx.dtypes = tuple(
            None if t is None else t.dtype
            for t in (first_weight, second_weight, first_bias, second_bias)
        )
        ctx.are_cast = first_codes is not None, second_codes is not None
        ctx.main_grads = first_main_grad, second_main_grad
        ctx.weights = (
            None if first_main_grad is None else first_weight,
            None if second_main_grad is None else second_weight,
        )
        return made.out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        needs = _Needs(*ctx.needs_input_grad[:6])
        offsets, sources, positions, weights, ids, y, gate_up, *rest = ctx.saved_tensors
        x_transposed, h_transposed = rest[:2], rest[2:4]
        of_first, of_second = rest[4:6], rest[6:]
        recipe: Recipe = ctx.recipe
        dtype = ctx.dtype
        first_dtype, second_dtype, first_bias_dtype, second_bias_dtype = ctx.dtypes
        to_first, to_second = ctx.main_grads
        for weight, is_needed in zip(ctx.weights, (needs.first, needs.second), strict=True):
            if weight is not None and is_needed:
                mark_gradient(weight)
        grad_input = recipe.grad_input
        assert grad_input is not None
        dx = d_weights = d_first = d_second = d_first_bias = d_second_bias = None
        dy = walkable(dy)
        if needs.weights:
            d_weights = combine_gradient(dy, y, positions)
        if needs.second_bias:
            d_second_bias = _bias_gradient(dy, ids, weights, offsets).to(second_bias_dtype)
        rows, transposed, *_ = cast_as_wanted(
            Gathered(dy, sources, slots=positions.shape[-1], factors=weights),
            *gradient_formats(recipe, needs.gate_up, needs.second),
            offsets=offsets,
        )
        if needs.second:
            d_second = _weight_gradient(
                transposed, h_transposed, offsets, recipe, second_dtype, to_second
            )
        if needs.gate_up:
            weight = _transposed(of_second, ctx.are_cast[1], recipe)
            dh = grouped_product(grad_input, rows, weight, offsets, dtype, cast_to=grad_input.a)
            rows, transposed, *_ = cast_as_wanted(
                ActivationGradient(dh, gate_up, ctx.activation),
                *gradient_formats(recipe, needs.x, needs.first),
                offsets=offsets,
            )
            if needs.first_bias:
                d = activated_gradient(dh, gate_up, ctx.activation)
                d_first_bias = _group_sums(d, offsets).to(first_bias_dtype)
            if needs.first:
                d_first = _weight_gradient(
                    transposed, x_transposed, offsets, recipe, first_dtype, to_first
                )
            if needs.x:
                weight = _transposed(of_first, ctx.are_cast[0], recipe)
                dx = grouped_product(grad_input, rows, weight, offsets, dtype)
                dx = combine(dx, positions, out_dtype=ctx.x_dtype)
        return dx, d_weights, d_first, d_second, d_first_bias, d_second_bias, *[None] * 17


def _parts(tensor: ScaledTensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if tensor is None else (tensor.data, tensor.scale)


def _kept(
    is_needed: bool,
    weight: Tensor | None,
    rows: ScaledTensor,
    codes: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """What backward has of a weight: its transposed cast, else what that can be made of."""
    if not is_needed:
        return None, None
    if codes is not None:
        return codes, scale
    return (weight, None) if weight is not None else _parts(rows)


def _transposed(kept: list[Tensor | None], is_cast: bool, recipe: Recipe) -> ScaledTensor | None:
    """Of what _kept() gave the transposed cast."""
    assert recipe.output is not None
    assert recipe.grad_input is not None
    data, scale = kept
    assert data is not None
    if is_cast:
        return ScaledTensor(data, scale, recipe.grad_input.b.granularity)
    if scale is None:
        return cast_weight(data, recipe, False, True)[1]
    return transposed_experts(ScaledTensor(data, scale, recipe.output.b.granularity), recipe)


def _weight_gradient(
    of_gradient: ScaledTensor | None,
    of_input: list[Tensor | None],
    offsets: Tensor,
    recipe: Recipe,
    dtype: torch.dtype,
    added_to: Tensor | None,
) -> Tensor | None:
    """[experts, out, in], of transposed casts; None where it was added to a tensor."""
    product = recipe.grad_weight
    assert product is not None
    assert of_gradient is not None
    data, scale = of_input
    b = ScaledTensor(data, scale, product.b.granularity)
    fast = product.fast_accumulation
    if added_to is None:
        gradient: Tensor = grouped_gemm_k(
            of_gradient, b, offsets, out_dtype=dtype, fast_accumulation=fast
        )
        return gradient
    grouped_gemm_k(of_gradient, b, offsets, out=added_to, c=added_to, fast_accumulation=fast)
    return None


def _bias_gradient(dy: Tensor, ids: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """[experts, out]: the gradient by each expert's result, summed over its tokens."""
    dy, ids, weights = dy.flatten(0, -2), ids.flatten(0, -2), weights.flatten(0, -2)
    numbers = torch.arange(offsets.shape[0] - 1, dtype=ids.dtype, device=ids.device)
    shares = ((ids.unsqueeze(-1) == numbers) * weights.unsqueeze(-1)).sum(1)
    return shares.t().to(dy.dtype) @ dy


def _group_sums(x: Tensor, offsets: Tensor) -> Tensor:
    """[experts, cols]: rows of x [rows, cols] summed; those behind the last are not looked at."""
    rows = torch.arange(x.shape[0], dtype=offsets.dtype, device=x.device)
    belongs = (rows >= offsets[:-1, None]) & (rows < offsets[1:, None])
    return belongs.to(x.dtype) @ torch.where((rows < offsets[-1]).unsqueeze(-1), x, 0)
