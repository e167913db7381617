"""The gradients of experts, wherever their tokens have come from.

The weights of the routing are in none of the rows that go back, only in the transposed casts of
tokens and of gradients that the weights of experts take, and in the last sum. So the gradient by
the activation, of a token as if its weight were 1, is there; and its product with the activation is
the gradient by the routing's weight, for which no row of the second product has to be kept.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import ActivationGradient
from ..._ops.grouped_gemm import Depth, grouped_gemm
from ..._ops.routing import Routing, activation_dots, combine
from ..casting.casts import cast_as_wanted, cast_weight, gather_codes, transposed_weight, walkable
from .activated import activated_gradient
from .experts_forward import (
    ExpertInputs,
    Made,
    Needs,
    Projection,
    Tokens,
    cast_tokens,
    compute_experts,
    grouped_product,
)
from .functions import Layout, differentiates, flatten, refuse_in_backward, save, saved
from .main_grad import mark_gradient
from .products import gradient_formats


class Weight(NamedTuple):
    """The transposed cast of a projection's weights or, where it is missing, what it can be made
    of."""

    transposed: ScaledTensor | None = None
    weight: Tensor | None = None
    rows: ScaledTensor | None = None


class Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    routing: Routing
    weights: Tensor
    ids: Tensor | None
    gate_up: Tensor | None
    x: ScaledTensor | None
    """Tokens that have come as codes, of which backward makes the transpose."""
    x_transposed: ScaledTensor | None
    h_transposed: ScaledTensor | None
    first: Weight
    second: Weight
    second_bias: Tensor | None


def kept_for(needs: Needs, made: Made, inputs: ExpertInputs) -> Kept:
    """The values that backward needs of those that forward had and made."""
    x, weights, routing, first, second, ids, *_ = inputs
    of_weights = second.bias if needs.weights else None
    return Kept(
        routing,
        weights,
        ids if needs.second_bias or of_weights is not None else None,
        made.gate_up if needs.gate_up else None,
        x if needs.first and isinstance(x, ScaledTensor) else None,
        made.x_transposed,
        made.h_transposed,
        _weight_of(first) if needs.x else Weight(),
        _weight_of(second) if needs.gate_up else Weight(),
        of_weights,
    )


class Target(NamedTuple):
    """The places that the gradients of a projection go to."""

    dtype: torch.dtype | None
    bias_dtype: torch.dtype | None
    main_grad: Tensor | None
    weight: Tensor | None
    """The weight that main_grad belongs to; None: there is no main_grad."""

    @staticmethod
    def of(projection: Projection) -> "Target":
        weight, bias, main_grad = projection.weight, projection.bias, projection.main_grad
        return Target(
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
        if self.weight is not None:
            mark_gradient(self.weight)
        return None


class ExpertLayer(NamedTuple):
    """The settings of a layer, and the targets of its projections' gradients."""

    activation: str
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""
    first: Target
    second: Target

    @staticmethod
    def of(inputs: ExpertInputs) -> "ExpertLayer":
        """The layer with these inputs."""
        targets = Target.of(inputs.first), Target.of(inputs.second)
        return ExpertLayer(inputs.activation, inputs.recipe, inputs.dtype, *targets)


class Gradients(NamedTuple):
    """The gradients by the inputs; None where they are not wanted."""

    x: Tensor | None
    """[..., hidden]"""
    weights: Tensor | None
    """[..., k], of the routing."""
    first: tuple[Tensor | None, Tensor | None]
    """By the weights and the biases of a projection."""
    second: tuple[Tensor | None, Tensor | None]


def expert_gradients(
    kept: Kept,
    needs: Needs,
    layer: ExpertLayer,
    dy: Tensor | ScaledTensor,
    x_dtype: torch.dtype,
) -> Gradients:
    """The gradients from dy [..., hidden], that by the result; of codes [tokens, hidden] with a
    scale for each row or 128 columns, their values count. x_dtype: that of the gradient by x."""
    offsets, sources, positions = kept.routing
    recipe, dtype, slots = layer.recipe, layer.dtype, positions.shape[-1]
    grad_input, grad_weight = recipe.grad_input, recipe.grad_weight
    assert grad_input is not None
    assert grad_weight is not None
    dx = d_weights = d_first = d_second = d_first_bias = d_second_bias = None
    of_rows, of_transpose = gradient_formats(recipe, needs.gate_up, needs.second)
    rows: ScaledTensor | None = None
    if isinstance(dy, ScaledTensor):
        if of_rows is not None:
            rows, of_rows = gather_codes(dy, sources, slots), None
        dy = _values(dy, dtype)
    if needs.second_bias:
        assert kept.ids is not None
        d_second_bias = expert_sums(dy, kept.ids, kept.weights, offsets)
        d_second_bias = d_second_bias.to(layer.second.bias_dtype)
    casts = cast_tokens(dy, kept.weights, kept.routing, of_rows, of_transpose)
    rows = casts.rows if rows is None else rows
    if needs.second:
        d_second = layer.second.gradient(casts.transposed, kept.h_transposed, offsets, recipe)
    if needs.gate_up:
        assert kept.gate_up is not None
        weight = _transposed(kept.second, recipe, offsets)
        dh = grouped_product(grad_input, rows, weight, offsets, dtype, cast_to=grad_input.a)
        if needs.weights:
            d_weights = activation_dots(dh, kept.gate_up, positions, activation=layer.activation)
            if kept.second_bias is not None:
                assert kept.ids is not None
                d_weights += bias_dots(dy, kept.second_bias, kept.ids, positions)
        casts = cast_as_wanted(
            ActivationGradient(dh, kept.gate_up, layer.activation),
            *gradient_formats(recipe, needs.x, needs.first),
            offsets=offsets,
        )
        if needs.first_bias:
            d = activated_gradient(dh, kept.gate_up, layer.activation)
            d_first_bias = group_sums(d, kept.routing, kept.weights).to(layer.first.bias_dtype)
        if needs.first:
            x_transposed = kept.x_transposed
            if x_transposed is None:
                assert kept.x is not None
                x = _values(kept.x, dtype)
                of_x = cast_tokens(x, kept.weights, kept.routing, None, grad_weight.b)
                x_transposed = of_x.transposed
            d_first = layer.first.gradient(casts.transposed, x_transposed, offsets, recipe)
        if needs.x:
            weight = _transposed(kept.first, recipe, offsets)
            dx = grouped_product(grad_input, casts.rows, weight, offsets, dtype)
            dx = combine(dx, positions, kept.weights, out_dtype=x_dtype)
    return Gradients(dx, d_weights, (d_first, d_first_bias), (d_second, d_second_bias))


def _values(codes: ScaledTensor, dtype: torch.dtype) -> Tensor:
    values: Tensor = codes.dequantize(dtype)
    return values


def _weight_of(projection: Projection) -> Weight:
    rows, transposed = projection.casts
    if transposed is not None:
        return Weight(transposed)
    weight = projection.weight
    return Weight(rows=rows) if weight is None else Weight(weight=weight)


def _transposed(kept: Weight, recipe: Recipe, offsets: Tensor) -> ScaledTensor | None:
    """The transposed cast of a projection's weights, of the experts at least that have tokens."""
    if kept.transposed is not None:
        return kept.transposed
    if kept.weight is not None:
        return cast_weight(kept.weight, recipe, False, True, offsets)[1]
    assert kept.rows is not None
    return transposed_weight(kept.rows, recipe)


def expert_sums(dy: Tensor, ids: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """[experts, out]: the gradient by each expert's result, summed over its tokens."""
    dy, ids, weights = dy.flatten(0, -2), ids.flatten(0, -2), weights.flatten(0, -2)
    numbers = torch.arange(offsets.shape[0] - 1, dtype=ids.dtype, device=ids.device)
    shares = ((ids.unsqueeze(-1) == numbers) * weights.unsqueeze(-1)).sum(1)
    dy = torch.where((ids >= 0).any(1, keepdim=True), dy, 0)  # no token may be any number
    return shares.t().to(dy.dtype) @ dy


def bias_dots(dy: Tensor, bias: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
    """float32 [..., k]: of each token's slots that have a row, the product of dy [..., out] and the
    bias [experts, out] of the slot's expert: what it adds to the gradient by the slot's weight."""
    dots = dy @ bias.to(dy.dtype).t()
    taken = dots.gather(-1, ids.clamp(0, bias.shape[0] - 1).long())
    return torch.where(positions >= 0, taken, 0).float()


def group_sums(x: Tensor, routing: Routing, weights: Tensor) -> Tensor:
    """[experts, cols]: rows of x [rows, cols] times their weights of the routing, summed; those
    behind the last are not looked at."""
    offsets, sources, _ = routing
    rows = torch.arange(x.shape[0], dtype=offsets.dtype, device=x.device)
    belongs = (rows >= offsets[:-1, None]) & (rows < offsets[1:, None])
    shares = belongs * weights.flatten().index_select(0, sources.clamp(min=0))
    sums: Tensor = shares.to(x.dtype) @ torch.where((rows < offsets[-1]).unsqueeze(-1), x, 0)
    return sums


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
    inputs = ExpertInputs(x, weights, routing, first, second, ids, activation, recipe, dtype)
    if differentiates("experts", x, weights, *first[:2], *second[:2]):
        layout, tensors = flatten(inputs)
        y: Tensor = _Experts.apply(layout, *tensors)  # type: ignore[no-untyped-call]
        return y
    return compute_experts(inputs, Needs()).out


class _Experts(torch.autograd.Function):
    """run_experts() where something is to be differentiated."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Tensor) -> Tensor:
        inputs: ExpertInputs = layout.record(tensors)
        needs = needs_of(layout, ctx)
        made = compute_experts(inputs, needs)
        save(ctx, kept_for(needs, made, inputs))
        ctx.layout, ctx.x_dtype, ctx.layer = layout, inputs.x.dtype, ExpertLayer.of(inputs)
        return made.out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        refuse_in_backward("experts", dy)
        made = expert_gradients(
            saved(ctx), needs_of(ctx.layout, ctx), ctx.layer, walkable(dy), ctx.x_dtype
        )
        gradients: tuple[Any, ...] = ctx.layout.gradients(ctx, **made._asdict())
        return gradients


def needs_of(layout: Layout, ctx: Any) -> Needs:
    """The gradients that a Function of experts is to give, by its inputs as a record."""
    needs = layout.needs(ctx)
    first, second = needs.first, needs.second
    flags = needs.x, needs.weights, first.weight, second.weight, first.bias, second.bias
    return Needs(*map(bool, flags))
