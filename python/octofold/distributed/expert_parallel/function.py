"""Experts that are spread over ranks, with a gradient.

    x ──cast──► codes ══exchange══► taken by expert ─► products ─► summed ══exchange══► summed: y
    dx: summed ══exchange══ summed ◄─ products ◄─ taken by expert ══exchange══ codes ◄──cast── dy

In two halves of the batch each exchange has begun before the products of the other half do.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._ops.routing import Routing, combine, sort_by_expert
from ..._ranks.wire import InFlight, begin_exchange
from ...nn.autograd.functions import (
    Layout,
    differentiates,
    flatten,
    refuse_in_backward,
    save,
    saved,
)
from ...nn.autograd.layer import Chain, Layer, Needs, needs_of
from ...nn.autograd.main_grad import GradientTargets
from ...nn.casting.casts import walkable
from .message import Field, arrived_tokens, packed, token_fields, tokens_of, unpacked
from .plan import NAME, Exchange, Plan, exact, fixed, order_of, parts_of, require_room
from .rank_experts import (
    ExpertInputs,
    ExpertLayer,
    Gradients,
    Kept,
    OfLayer,
    compute_experts,
    expert_gradients,
)


class Inputs(NamedTuple):
    """The inputs of an expert layer, of this rank's tokens."""

    x: Tensor
    """[tokens, hidden]"""
    weights: Tensor
    """float32 [tokens, k]"""
    ids: Tensor
    """[tokens, k], of all experts."""
    plans: tuple[Plan, ...]
    """The plans of the parts of the batch, one behind the other."""
    layers: tuple[Layer, Layer]
    """Both layers of this rank's experts."""
    chain: Chain
    dtype: torch.dtype
    """The dtype of the result."""
    exchange: Exchange

    @property
    def experts(self) -> int:
        """How many this rank has."""
        return self.layers[0].shape()[0]


def run_over_ranks(inputs: Inputs, dropped: Tensor | None) -> Tensor:
    """The layer [tokens, hidden] of inputs that fit, without plans. dropped: int64 [1], to
    which the number of rows that found no room is added."""
    plans, beyond = _plans(inputs)
    inputs = inputs._replace(plans=plans)
    trained = (parameter for layer in inputs.layers for parameter in layer.parameters())
    if differentiates("distributed.experts", inputs.x, inputs.weights, *trained):
        layout, tensors = flatten(inputs)
        made = _Experts.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        y, of_products = (made, None) if isinstance(made, Tensor) else made
    else:
        y, of_products, _ = _forward(inputs, Needs())
    for number in (beyond, of_products):
        if number is not None and dropped is not None:
            dropped.add_(number)
    result: Tensor = y
    return result


def _plans(inputs: Inputs) -> tuple[tuple[Plan, ...], Tensor | None]:
    """The plan of each part; and how many rows find no room on the wire."""
    exchange = inputs.exchange
    experts = inputs.experts * exchange.ranks.size
    halves = torch.tensor_split(inputs.ids, exchange.halves)
    orders = [order_of(ids, experts, exchange.ranks) for ids in halves]
    if exchange.capacity is None:
        return tuple(exact(NAME, orders, exchange.ranks)), None
    made = [fixed(order, exchange.capacity, exchange.ranks) for order in orders]
    beyond = sum((number for _, number in made[1:]), made[0][1])
    bad = any(order.bad for order in orders)
    require_room(NAME, "capacity", exchange.capacity, beyond, bad, exchange.ranks)
    return tuple(plan for plan, _ in made), beyond


def _forward(inputs: Inputs, needs: Needs) -> tuple[Tensor, Tensor | None, list[Kept]]:
    """y; how many rows found no room in products; and what backward needs, for each part."""
    _, _, _, plans, layers, chain, dtype, exchange = inputs
    output = chain.recipe.output
    assert output is not None
    format = exchange.format(output.a)
    rows = zip(*(parts_of(t, plans) for t in (inputs.x, inputs.weights, inputs.ids)), strict=True)
    coming = [
        _to_experts(x, plan, exchange, format, _choices(weights, ids, plan, inputs))
        for (x, weights, ids), plan in zip(rows, plans, strict=True)
    ]
    fields = token_fields(inputs.x.shape[1], inputs.x.dtype, format)
    slots = inputs.ids.shape[1]
    fields += [Field(torch.int32, slots), Field(torch.float32, slots)]
    returning, kept, beyond = [], [], None
    for plan, message in zip(plans, coming, strict=True):
        views = unpacked(message.arrived(), fields)
        x = arrived_tokens(views, format)
        ids, weights = (view.contiguous() for view in views)
        routing, over = _routing(ids, plan, inputs)
        if over is not None:
            ids = torch.where(routing.positions < 0, -1, ids)
        arrived = ExpertInputs(x, weights, routing, ids, layers, chain, dtype)
        out, of_part = compute_experts(arrived, needs, exchange.combine_dtype)
        kept.append(of_part)
        back = begin_exchange(NAME, out, exchange.ranks, plan.sent, plan.received)
        returning.append(back)
        if over is not None:
            beyond = over if beyond is None else beyond + over
    made_parts = [
        combine(message.arrived(), plan.positions, out_dtype=dtype)
        for plan, message in zip(plans, returning, strict=True)
    ]
    y = made_parts[0] if len(made_parts) == 1 else torch.cat(made_parts)
    return y, beyond, kept


def _choices(weights: Tensor, ids: Tensor, plan: Plan, inputs: Inputs) -> list[Tensor]:
    """Returns for each row that is sent its choices among the experts of the rank that it goes to,
    int32 [rows, k], -1 for others, and its weights [rows, k]."""
    ranks = inputs.exchange.ranks.size
    per_rank = inputs.experts
    if ids.shape[0] == 0:
        rows = (plan.sources.shape[0], ids.shape[1])
        return [ids.new_full(rows, -1, dtype=torch.int32), weights.new_zeros(rows)]
    places = plan.sources.clamp(min=0)
    tokens, ranks_of_rows = places // ranks, (places % ranks).unsqueeze(-1)
    own = ids.index_select(0, tokens) - ranks_of_rows * per_rank
    is_own = (own >= 0) & (own < per_rank) & (plan.sources >= 0).unsqueeze(-1)
    return [torch.where(is_own, own, -1).to(torch.int32), weights.index_select(0, tokens)]


def _to_experts(
    x: Tensor, plan: Plan, exchange: Exchange, format: Format | None, beside: list[Tensor]
) -> InFlight:
    tokens = tokens_of(x, plan.sources, exchange.ranks.size, format)
    rows = packed([*tokens.tensors, *beside])
    return begin_exchange(NAME, rows, exchange.ranks, plan.received, plan.sent)


def _routing(ids: Tensor, plan: Plan, inputs: Inputs) -> tuple[Routing, Tensor | None]:
    """The order of rows for this rank's experts, as many as there are or there is room for; and how
    many there is no room for."""
    exchange = inputs.exchange
    routing = sort_by_expert(ids, inputs.experts)
    offsets, sources, positions = routing
    if plan.slots is not None:
        return routing._replace(sources=sources[: plan.slots]), None
    room = exchange.local_rows
    if room is None or room >= sources.shape[0]:
        return routing, None
    over = (offsets[-1:] - room).clamp(min=0)
    require_room(NAME, "local_rows", room, over, False, exchange.ranks)
    positions = torch.where(positions < room, positions, -1)
    return Routing(offsets.clamp(max=room), sources[:room], positions), over


class _Experts(torch.autograd.Function):
    """run_over_ranks() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        inputs: Inputs = layout.record(tensors)
        y, beyond, kept = _forward(inputs, needs_of(layout, ctx))
        save(ctx, (inputs.plans, tuple(kept)))
        ctx.layout, ctx.x_dtype, ctx.exchange = layout, inputs.x.dtype, inputs.exchange
        ctx.layer = ExpertLayer.of(inputs)
        if beyond is None:  # Dynamo takes no None beside a tensor
            return y
        ctx.mark_non_differentiable(beyond)
        return y, beyond

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
        refuse_in_backward("distributed.experts", dy)
        plans, kept = saved(ctx)
        needs, dy = needs_of(ctx.layout, ctx), walkable(dy)
        made = gradients_over_ranks(dy, plans, kept, needs, ctx.layer, ctx.exchange, ctx.x_dtype)
        layers = [(None if dw is None else (dw,), db) for dw, db in made.layers]
        gradients: tuple[Any, ...] = ctx.layout.gradients(
            ctx, x=made.x, weights=made.weights, layers=layers
        )
        return gradients


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
    grad_input = layer.chain.recipe.grad_input
    assert grad_input is not None
    format = exchange.format(grad_input.a)
    coming = []
    for part, plan in zip(parts_of(dy, plans), plans, strict=True):
        rows = packed(tokens_of(part, plan.sources, exchange.ranks.size, format).tensors)
        coming.append(begin_exchange(NAME, rows, exchange.ranks, plan.received, plan.sent))
    fields = token_fields(dy.shape[1], dy.dtype, format)
    made: list[Gradients] = []
    returning = []
    for plan, of_forward, message in zip(plans, kept, coming, strict=True):
        arrived = arrived_tokens(unpacked(message.arrived(), fields), format)
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
    layers = made[0].layers
    if len(made) > 1:
        of_layers = zip(*(part.layers for part in made), strict=True)
        layers = tuple(map(_total, of_layers, layer.targets))
    return Gradients(dx, d_weights, layers)


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
    of_x, of_weights = Field(exchange.combine_dtype or x_dtype, hidden), Field(torch.float32, slots)
    views = unpacked(message.arrived(), [of_x] * needs.x + [of_weights] * needs.weights)
    dx = combine(views.pop(0), plan.positions, out_dtype=x_dtype) if needs.x else None
    return dx, combine(views.pop(0), plan.positions) if needs.weights else None


def _whole(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if len(found) > 1 else next(iter(found), None)


def _adding(layer: ExpertLayer, before: list[Gradients]) -> ExpertLayer:
    """The layer whose weight gradients are FP32, and are added to those of the part before."""

    def adding(target: GradientTargets, held: Tensor | None) -> GradientTargets:
        count, wide = len(target.rows), torch.float32
        return target._replace(dtypes=(wide,) * count, bias_dtype=wide, main_grads=(held,) * count)

    held = [weight for weight, _ in before[0].layers] if before else [None, None]
    return layer._replace(targets=tuple(map(adding, layer.targets, held)))


def _total(parts: tuple[OfLayer, ...], target: GradientTargets) -> OfLayer:
    """By weights, which the parts have added to the first one's, and by biases."""
    weight, bias = parts[0]
    for _, other in parts[1:]:
        bias = bias if other is None or bias is None else bias + other
    return (
        None if weight is None else weight.to(target.dtype()),
        None if bias is None else bias.to(target.bias_dtype),
    )
