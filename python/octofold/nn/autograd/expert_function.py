"""Experts with a gradient."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import ActivationGradient, Gathered
from ..._ops.grouped_gemm import grouped_gemm
from ..._ops.groups import Depth
from ..._ops.routing import Routing, combine, combine_gradient, sort_by_expert
from ..casting.casts import cast_as_wanted, cast_weight, walkable
from ..casting.transposed import transposed_weight
from .activated import activated_gradient
from .expert_chain import Made, Projection, compute_experts, grouped_product
from .first_order import refuse_in_backward, refuse_transforms
from .flat import Layout, flatten, save, saved
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
    inputs = _Inputs(x, weights, routing, first, second, topk_ids, activation, recipe, dtype)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or weights.requires_grad
        or first.needs_gradient()
        or second.needs_gradient()
    ):
        refuse_transforms("experts")
        layout, tensors = flatten(inputs)
        y: Tensor = _Experts.apply(layout, *tensors)  # type: ignore[no-untyped-call]
    else:
        y = _forward(inputs, _Needs()).out
    return y[0] if is_vector else y


class _Inputs(NamedTuple):
    """The inputs of an expert layer."""

    x: Tensor
    weights: Tensor
    """The weights of the routing."""
    routing: Routing
    first: Projection
    second: Projection
    ids: Tensor
    activation: str
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""


class _Needs(NamedTuple):
    """Which gradients are wanted."""

    x: bool = False
    weights: bool = False
    first: bool = False
    second: bool = False
    first_bias: bool = False
    second_bias: bool = False

    @property
    def gate_up(self) -> bool:
        return self.x or self.first or self.first_bias


class _Weight(NamedTuple):
    """The transposed cast of a projection's weights or, where it is missing, what it can be made
    of."""

    transposed: ScaledTensor | None = None
    weight: Tensor | None = None
    rows: ScaledTensor | None = None


class _Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    routing: Routing
    weights: Tensor
    ids: Tensor | None
    y: Tensor | None
    """Rows of the second product."""
    gate_up: Tensor | None
    x_transposed: ScaledTensor | None
    h_transposed: ScaledTensor | None
    first: _Weight
    second: _Weight


def _forward(inputs: _Inputs, needs: _Needs) -> Made:
    return compute_experts(
        inputs.x,
        inputs.weights.contiguous(),
        *inputs[2:5],
        *inputs[6:],
        keep_x=needs.first,
        keep_gate_up=needs.gate_up,
        keep_h=needs.second,
    )


class _Experts(torch.autograd.Function):
    """run_experts() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: _Inputs = layout.record(tensors)
        needs = _needs(layout, ctx)
        first, second = inputs.first, inputs.second
        made = _forward(inputs, needs)
        kept = _Kept(
            inputs.routing,
            inputs.weights.contiguous(),
            inputs.ids if needs.second_bias else None,
            made.y if needs.weights else None,
            made.gate_up if needs.gate_up else None,
            made.x_transposed,
            made.h_transposed,
            _weight_of(first) if needs.x else _Weight(),
            _weight_of(second) if needs.gate_up else _Weight(),
        )
        save(ctx, kept)
        ctx.layout, ctx.x_dtype = layout, inputs.x.dtype
        ctx.activation, ctx.recipe, ctx.dtype = inputs[6:]
        ctx.first, ctx.second = _Target.of(first), _Target.of(second)
        return made.out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        needs, kept = _needs(ctx.layout, ctx), saved(ctx)
        offsets, sources, positions = kept.routing
        recipe, dtype, gate_up = ctx.recipe, ctx.dtype, kept.gate_up
        grad_input = recipe.grad_input
        assert grad_input is not None
        dx = d_weights = d_first = d_second = d_first_bias = d_second_bias = None
        dy = walkable(dy)
        if needs.weights:
            d_weights = combine_gradient(dy, kept.y, positions)
        if needs.second_bias:
            d_second_bias = _bias_gradient(dy, kept.ids, kept.weights, offsets)
            d_second_bias = d_second_bias.to(ctx.second.bias_dtype)
        rows, transposed, *_ = cast_as_wanted(
            Gathered(dy, sources, slots=positions.shape[-1], factors=kept.weights),
            *gradient_formats(recipe, needs.gate_up, needs.second),
            offsets=offsets,
        )
        if needs.second:
            d_second = ctx.second.gradient(transposed, kept.h_transposed, offsets, recipe)
        if needs.gate_up:
            weight = _transposed(kept.second, recipe)
            dh = grouped_product(grad_input, rows, weight, offsets, dtype, cast_to=grad_input.a)
            rows, transposed, *_ = cast_as_wanted(
                ActivationGradient(dh, gate_up, ctx.activation),
                *gradient_formats(recipe, needs.x, needs.first),
                offsets=offsets,
            )
            if needs.first_bias:
                d = activated_gradient(dh, gate_up, ctx.activation)
                d_first_bias = _group_sums(d, offsets).to(ctx.first.bias_dtype)
            if needs.first:
                d_first = ctx.first.gradient(transposed, kept.x_transposed, offsets, recipe)
            if needs.x:
                weight = _transposed(kept.first, recipe)
                dx = grouped_product(grad_input, rows, weight, offsets, dtype)
                dx = combine(dx, positions, out_dtype=ctx.x_dtype)
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx,
            x=dx,
            weights=d_weights,
            first=(d_first, d_first_bias),
            second=(d_second, d_second_bias),
        )
        return gradients


class _Target(NamedTuple):
    """The places that the gradients of a projection go to."""

    dtype: torch.dtype | None
    bias_dtype: torch.dtype | None
    main_grad: Tensor | None
    weight: Tensor | None
    """Held where there is a main_grad."""

    @staticmethod
    def of(projection: Projection) -> "_Target":
        weight, bias, main_grad = projection.weight, projection.bias, projection.main_grad
        return _Target(
            None if weight is None else weight.dtype,
            None if bias is None else bias.dtype,
            main_grad,
            None if main_grad is None else weight,
        )

    def gradient(
        self,
        of_gradient: ScaledTensor | None,
        of_input: ScaledTensor | None,
        offsets: Tensor,
        recipe: Recipe,
    ) -> Tensor | None:
        """[experts, out, in], of transposed casts; None where it was added to a main_grad."""
        product, added_to = recipe.grad_weight, self.main_grad
        assert product is not None
        assert of_gradient is not None
        assert of_input is not None
        fast, operands = product.fast_accumulation, (of_gradient, of_input, Depth(offsets))
        if added_to is None:
            gradient: Tensor = grouped_gemm(*operands, out_dtype=self.dtype, fast_accumulation=fast)
            return gradient
        grouped_gemm(*operands, c=added_to, fast_accumulation=fast, out=added_to)
        assert self.weight is not None
        mark_gradient(self.weight)
        return None


def _needs(layout: Layout, ctx: Any) -> _Needs:
    needs: _Inputs = layout.needs(ctx)
    first, second = needs.first, needs.second
    flags = needs.x, needs.weights, first.weight, second.weight, first.bias, second.bias
    return _Needs(*map(bool, flags))


def _weight_of(projection: Projection) -> _Weight:
    rows, transposed = projection.casts
    if transposed is not None:
        return _Weight(transposed)
    weight = projection.weight
    return _Weight(rows=rows) if weight is None else _Weight(weight=weight)


def _transposed(kept: _Weight, recipe: Recipe) -> ScaledTensor | None:
    """The transposed cast of a projection's weights."""
    if kept.transposed is not None:
        return kept.transposed
    if kept.weight is not None:
        return cast_weight(kept.weight, recipe, False, True)[1]
    assert kept.rows is not None
    return transposed_weight(kept.rows, recipe)


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
