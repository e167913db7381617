"""The gradients of experts that are spread over ranks."""

import torch
from torch import Tensor

from ..._ops.routing import combine
from ..._ranks.wire import InFlight, begin_exchange
from ...nn.autograd.experts_backward import (
    ExpertLayer,
    Gradients,
    Kept,
    Needs,
    Target,
    expert_gradients,
)
from .message import Part, arrived_tokens, packed, token_parts, tokens_of, unpacked
from .options import NAME, Exchange
from .plan import Plan, parts_of


def gradients_over_ranks(
    dy: Tensor,
    plans: tuple[Plan, ...],
    kept: tuple[Kept, ...],
    needs: Needs,
    layer: ExpertLayer,
    exchange: Exchange,
    x_dtype: torch.dtype,
) -> Gradients:
    """The gradients from dy [tokens, hidden]: by this rank's tokens, routing weights, experts."""
    grad_input = layer.recipe.grad_input
    assert grad_input is not None
    format = exchange.format(grad_input.a)
    coming = []
    for part, plan in zip(parts_of(dy, plans), plans, strict=True):
        rows = packed(tokens_of(part, plan.sources, exchange.ranks.size, format).parts)
        coming.append(begin_exchange(NAME, rows, exchange.ranks, plan.received, plan.sent))
    parts = token_parts(dy.shape[1], dy.dtype, format)
    made: list[Gradients] = []
    returning = []
    for plan, of_forward, message in zip(plans, kept, coming, strict=True):
        arrived = arrived_tokens(unpacked(message.arrived(), parts), format)
        own = layer if len(plans) == 1 else _adding(layer, made)
        dtype = exchange.combine_dtype or x_dtype
        made.append(expert_gradients(of_forward, needs, own, arrived, dtype))
        returning.append(_home(made[-1], plan, exchange))
    slots = kept[0].routing.positions.shape[-1]
    tokens = [
        _at_home(message, plan, needs, dy.shape[1], slots, x_dtype, exchange)
        for plan, message in zip(plans, returning, strict=True)
    ]
    dx, d_weights = (_whole([part[i] for part in tokens]) for i in (0, 1))
    first, second = made[0].first, made[0].second
    if len(made) > 1:
        first = _total([m.first for m in made], layer.first)
        second = _total([m.second for m in made], layer.second)
    return Gradients(dx, d_weights, first, second)


def _home(made: Gradients, plan: Plan, exchange: Exchange) -> InFlight | None:
    """The gradients by the tokens that had come, on their way back."""
    rows = [part for part in (made.x, made.weights) if part is not None]
    if not rows:
        return None
    return begin_exchange(NAME, packed(rows), exchange.ranks, plan.sent, plan.received)


def _at_home(
    message: InFlight | None,
    plan: Plan,
    needs: Needs,
    hidden: int,
    slots: int,
    x_dtype: torch.dtype,
    exchange: Exchange,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by this rank's tokens [tokens, hidden], and by their weights [tokens, k]: that
    by a weight comes from one rank, and zeros from others."""
    if message is None:
        return None, None
    of_x, of_weights = Part(exchange.combine_dtype or x_dtype, hidden), Part(torch.float32, slots)
    views = unpacked(message.arrived(), [of_x] * needs.x + [of_weights] * needs.weights)
    dx = combine(views.pop(0), plan.positions, out_dtype=x_dtype) if needs.x else None
    return dx, combine(views.pop(0), plan.positions) if needs.weights else None


def _whole(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if len(found) > 1 else next(iter(found), None)


def _adding(layer: ExpertLayer, before: list[Gradients]) -> ExpertLayer:
    """The layer whose weight gradients are FP32, and are added to those of the part before."""

    def adding(target: Target, weight: Tensor | None) -> Target:
        return Target(torch.float32, torch.float32, weight, None)

    return layer._replace(
        first=adding(layer.first, before[0].first[0] if before else None),
        second=adding(layer.second, before[0].second[0] if before else None),
    )


def _total(
    parts: list[tuple[Tensor | None, Tensor | None]], target: Target
) -> tuple[Tensor | None, Tensor | None]:
    """By weights, which the parts have added to the first one's, and by biases."""
    weight, bias = parts[0]
    for _, other in parts[1:]:
        bias = bias if other is None or bias is None else bias + other
    return (
        None if weight is None else weight.to(target.dtype),
        None if bias is None else bias.to(target.bias_dtype),
    )
