"""Experts whose products are FP8 with FP8, with a gradient."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._ops.routing import Routing
from ..casting.casts import walkable
from .expert_chain import Made, Projection, compute_experts
from .expert_gradients import ExpertLayer, Needs, Target, expert_gradients, kept_for
from .expert_inputs import Tokens
from .first_order import differentiates, refuse_in_backward
from .flat import Layout, flatten, save, saved


def native_experts(
    tokens: Tokens,
    first: Projection,
    second: Projection,
    activation: str,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """[..., hidden] in this dtype. Casts of weights may lack those of experts without tokens. A
    transposed cast that is missing backward makes, of the weight as it is then."""
    x, weights, routing, ids = tokens
    inputs = _Inputs(x, weights, routing, first, second, ids, activation, recipe, dtype)
    if differentiates("experts", x, weights, *first[:2], *second[:2]):
        layout, tensors = flatten(inputs)
        y: Tensor = _Experts.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        return y
    return _forward(inputs, Needs()).out


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


def _forward(inputs: _Inputs, needs: Needs) -> Made:
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
        kept = kept_for(
            needs,
            made,
            inputs.x,
            inputs.weights.contiguous(),
            inputs.ids,
            inputs.routing,
            first,
            second,
        )
        save(ctx, kept)
        ctx.layout, ctx.x_dtype = layout, inputs.x.dtype
        ctx.layer = ExpertLayer(*inputs[6:], Target.of(first), Target.of(second))
        return made.out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        made = expert_gradients(
            saved(ctx), _needs(ctx.layout, ctx), ctx.layer, walkable(dy), ctx.x_dtype
        )
        gradients: tuple[Any, ...] = ctx.layout.gradients(ctx, **made._asdict())
        return gradients


def _needs(layout: Layout, ctx: Any) -> Needs:
    needs: _Inputs = layout.needs(ctx)
    first, second = needs.first, needs.second
    flags = needs.x, needs.weights, first.weight, second.weight, first.bias, second.bias
    return Needs(*map(bool, flags))
