"""The experts of one rank, whose tokens may have come as codes, as ranks cast before they send: by
casts and products one after another. (octofold.experts() is one call of the library.)

The weights of the routing are in none of the rows that go back, only in the transposed casts of
tokens and of gradients that the weights of experts take, and in the last sum. So the gradient by
the activation, of a token as if its weight were 1, is there; and its product with the activation is
the gradient by the routing's weight, for which no row of the second product has to be kept.
"""

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast_sources import Activated, ActivationGradient, Gathered
from ..._ops.gated_gemm import gated_gemm
from ..._ops.grouped_gemm import Depth, Rows, grouped_gemm
from ..._ops.routing import Routing, activation_dots, combine, combine_gradient
from ...nn.autograd.activated import activated_gradient, gated_in_one
from ...nn.autograd.layer import Chain, Layer, Needs, TransposedWeight
from ...nn.autograd.main_grad import GradientTargets
from ...nn.autograd.products import addable, gradient_formats, grouped_product
from ...nn.casting.casts import cast_as_wanted, gather_codes


class ExpertInputs(NamedTuple):
    """The inputs of the experts."""

    x: Tensor | ScaledTensor
    """[..., hidden], or codes of it [tokens, hidden] with the scales of recipe.output.a, or one for
    each row."""
    weights: Tensor
    """The weights of the routing, float32 [..., k], contiguous."""
    routing: Routing
    ids: Tensor
    layers: tuple[Layer, Layer]
    chain: Chain
    dtype: torch.dtype
    """The dtype of the result."""


class Kept(NamedTuple):
    """The values that backward computes with. Those that it does not need are None."""

    routing: Routing
    weights: Tensor
    ids: Tensor | None
    gate_up: Tensor | None
    """Rows of the first product."""
    x: ScaledTensor | None
    """Tokens that have come as codes, of which backward makes the transpose."""
    x_transposed: ScaledTensor | None
    """The transposed cast of rows of x times the weights of the routing."""
    h_transposed: ScaledTensor | None
    first: TransposedWeight
    second: TransposedWeight
    second_bias: Tensor | None


def compute_experts(
    inputs: ExpertInputs, needs: Needs, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Kept]:
    """needs: the gradients that backward is to give. out_dtype: that of the sums, if they are to be
    of another than products."""
    x, weights, routing, ids, (first, second), chain, dtype = inputs
    activation, recipe, offsets = chain.activation, chain.recipe, routing.offsets
    output, grad_weight = recipe.output, recipe.grad_weight
    assert activation is not None
    assert output is not None
    assert grad_weight is not None
    codes, values = (x, None) if isinstance(x, ScaledTensor) else (None, x)
    of_x = grad_weight.b if needs.first and codes is None else None
    rows, x_transposed = _cast_tokens(codes, values, weights, routing, output.a, of_x)
    assert rows is not None
    h: ScaledTensor | None
    gate_up = h_transposed = None
    keeps_gate_up = needs.gate_up() or needs.second
    if not keeps_gate_up and gated_in_one(recipe, activation, first.rows(), first.bias, dtype):
        h = gated_gemm(
            rows,
            first.rows(),
            Rows(offsets),
            activation=activation,
            format=output.a,
            batch_invariant=output.batch_invariant,
        )
    else:
        gate_up = grouped_product(output, rows, first.rows(), offsets, dtype, first.bias, output.a)
        of_h = grad_weight.b if needs.second else None
        h, h_transposed, *_ = cast_as_wanted(
            Activated(gate_up, activation), output.a, of_h, offsets=offsets
        )
    y = grouped_product(output, h, second.rows(), offsets, dtype, second.bias)
    bias = addable(second.bias, dtype) if needs.weights else None
    kept = Kept(
        routing,
        weights,
        ids if needs.second_bias or bias is not None else None,
        gate_up if needs.gate_up() else None,
        codes if needs.first else None,
        x_transposed,
        h_transposed,
        TransposedWeight.of(first, needs.x),
        TransposedWeight.of(second, needs.gate_up()),
        bias,
    )
    return combine(y, routing.positions, weights, out_dtype=out_dtype or dtype), kept


class ExpertLayer(NamedTuple):
    """The settings of a layer, and the places that gradients by its weights and biases go to."""

    chain: Chain
    dtype: torch.dtype
    """The dtype of the result."""
    targets: tuple[GradientTargets, ...]

    @staticmethod
    def of(inputs: Any) -> "ExpertLayer":
        """The layer with these inputs: an ExpertInputs, or another record with their names."""
        targets = tuple(layer.targets() for layer in inputs.layers)
        return ExpertLayer(inputs.chain, inputs.dtype, targets)


OfLayer: TypeAlias = tuple[Tensor | None, Tensor | None]
"""The gradients by the weights and by the biases of a layer."""


class Gradients(NamedTuple):
    """The gradients by the inputs; None where they are not wanted."""

    x: Tensor | None
    """[..., hidden]"""
    weights: Tensor | None
    """[..., k], of the routing."""
    layers: tuple[OfLayer, ...]


def _weight_gradient(
    of_gradient: ScaledTensor | None,
    of_input: ScaledTensor | None,
    offsets: Tensor,
    recipe: Recipe,
    target: GradientTargets,
) -> Tensor:
    """[experts, out, in], of transposed casts; what it was added to, if to anything."""
    product, c = recipe.grad_weight, target.added_to()
    assert product is not None
    assert of_gradient is not None
    assert of_input is not None
    gradient: Tensor = grouped_gemm(
        of_gradient,
        of_input,
        Depth(offsets),
        c=c,
        out_dtype=target.dtype() if c is None else None,
        fast_accumulation=product.fast_accumulation,
        out=c,
    )
    return gradient


def expert_gradients(
    kept: Kept,
    needs: Needs,
    layer: ExpertLayer,
    dy: Tensor | ScaledTensor,
    x_dtype: torch.dtype,
) -> Gradients:
    """The gradients from dy [..., hidden], that by the result; of codes [tokens, hidden] with a
    scale for each row or 128 columns, their values count. x_dtype: that of the gradient by x."""
    routing, weights = kept[:2]
    offsets, positions = routing.offsets, routing.positions
    chain, dtype, (first, second) = layer
    activation, recipe = chain.activation, chain.recipe
    assert activation is not None
    grad_input, grad_weight = recipe.grad_input, recipe.grad_weight
    assert grad_input is not None
    assert grad_weight is not None
    dx = d_weights = d_first = d_second = d_first_bias = d_second_bias = None
    codes, values = (None, dy) if isinstance(dy, Tensor) else (dy, dy.dequantize(dtype))
    if needs.second_bias:
        assert kept.ids is not None
        d_second_bias = _expert_sums(values, kept.ids, weights, offsets).to(second.bias_dtype)
    formats = gradient_formats(recipe, needs.gate_up(), needs.second)
    rows, transposed = _cast_tokens(codes, values, weights, routing, *formats)
    if needs.second:
        d_second = _weight_gradient(transposed, kept.h_transposed, offsets, recipe, second)
    if needs.gate_up():
        assert kept.gate_up is not None
        weight = kept.second.made(recipe, offsets)
        dh = grouped_product(grad_input, rows, weight, offsets, dtype, cast_to=grad_input.a)
        if needs.weights:
            d_weights = activation_dots(dh, kept.gate_up, positions, activation=activation)
            if kept.second_bias is not None:
                assert kept.ids is not None
                d_weights += combine_gradient(values, kept.second_bias, kept.ids)
        source = ActivationGradient(dh, kept.gate_up, activation)
        formats = gradient_formats(recipe, needs.x, needs.first)
        rows, transposed, *_ = cast_as_wanted(source, *formats, offsets=offsets)
        if needs.first_bias:
            d = activated_gradient(dh, kept.gate_up, activation)
            d_first_bias = _group_sums(d, routing, weights).to(first.bias_dtype)
        if needs.first:
            x_transposed = kept.x_transposed
            if kept.x is not None:
                x = kept.x.dequantize(dtype)
                _, x_transposed = _cast_tokens(None, x, weights, routing, None, grad_weight.b)
            d_first = _weight_gradient(transposed, x_transposed, offsets, recipe, first)
        if needs.x:
            weight = kept.first.made(recipe, offsets)
            dx = grouped_product(grad_input, rows, weight, offsets, dtype)
            dx = combine(dx, positions, weights, out_dtype=x_dtype)
    return Gradients(dx, d_weights, ((d_first, d_first_bias), (d_second, d_second_bias)))


def _expert_sums(dy: Tensor, ids: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """[experts, out]: the gradient by each expert's result, summed over its tokens."""
    dy, ids, weights = dy.flatten(0, -2), ids.flatten(0, -2), weights.flatten(0, -2)
    numbers = torch.arange(offsets.shape[0] - 1, dtype=ids.dtype, device=ids.device)
    shares = ((ids.unsqueeze(-1) == numbers) * weights.unsqueeze(-1)).sum(1)
    dy = torch.where((ids >= 0).any(1, keepdim=True), dy, 0)  # no token may be any number
    return shares.t().to(dy.dtype) @ dy


def _group_sums(x: Tensor, routing: Routing, weights: Tensor) -> Tensor:
    """[experts, cols]: rows of x [rows, cols] times their weights of the routing, summed; those
    behind the last are not looked at."""
    offsets, sources, _ = routing
    rows = torch.arange(x.shape[0], dtype=offsets.dtype, device=x.device)
    belongs = (rows >= offsets[:-1, None]) & (rows < offsets[1:, None])
    shares = belongs * weights.flatten().index_select(0, sources.clamp(min=0))
    sums: Tensor = shares.to(x.dtype) @ torch.where((rows < offsets[-1]).unsqueeze(-1), x, 0)
    return sums


def _cast_tokens(
    codes: ScaledTensor | None,
    values: Any,
    weights: Tensor,
    routing: Routing,
    rows: Format | None,
    transposed: Format | None,
) -> tuple[ScaledTensor | None, ScaledTensor | None]:
    """The rows of the routing, of tokens [..., cols]: their codes, where they have any, else casts
    of their values; and the cast of the transpose of these rows times their weights [..., k]."""
    offsets, sources, positions = routing
    slots = positions.shape[-1]
    own = None
    if codes is not None and rows is not None:
        own, rows = gather_codes(codes, sources, slots), None
    if rows is None and transposed is None:
        return own, None
    factors = None if transposed is None else weights
    source = Gathered(values, sources, slots=slots, transposed_factors=factors)
    casts = cast_as_wanted(source, rows, transposed, offsets=offsets)
    return casts.rows if own is None else own, casts.transposed
