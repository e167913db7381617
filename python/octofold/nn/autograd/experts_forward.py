"""The forward of experts: where their tokens go, the casts, and the two products."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import Activated, Gathered
from ..._ops.gated_gemm import gated_gemm
from ..._ops.grouped_gemm import Rows, grouped_gemm
from ..._ops.routing import Routing, combine, sort_by_expert
from ..casting.casts import WeightCasts, cast_as_wanted, gather_codes, walkable
from .activated import gated_in_one
from .products import addable


class Tokens(NamedTuple):
    """The inputs of an expert layer beside its weights and biases."""

    x: Tensor
    """[..., hidden], of at least two dimensions, walkable."""
    weights: Tensor
    """The weights of the routing, float32 [..., k], contiguous."""
    routing: Routing
    ids: Tensor
    """int32 [..., k]."""


def routed_tokens(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, experts: int) -> Tokens:
    """Routes tokens to experts, by arguments that fit. It comes before the casts of the weights,
    which are made of those experts alone that have tokens."""
    if x.dim() == 1:
        x, topk_ids, topk_weights = x[None], topk_ids[None], topk_weights[None]
    if topk_ids.dtype != torch.int32:
        topk_ids = topk_ids.clamp(-2, experts).to(torch.int32)  # no other becomes an expert's
    routing = sort_by_expert(walkable(topk_ids), experts)
    return Tokens(walkable(x), topk_weights.to(torch.float32).contiguous(), routing, topk_ids)


class Projection(NamedTuple):
    """One of the two layers of all experts: the weights [experts, out, in] in high precision (None:
    they are FP8 and have no gradient), biases [experts, out], and the casts of the weights."""

    weight: Tensor | None
    bias: Tensor | None
    casts: WeightCasts
    main_grad: Tensor | None = None
    """The tensor that the weights' gradient is added to, instead of weight.grad."""

    def needs_gradient(self) -> bool:
        return any(t is not None and t.requires_grad for t in (self.weight, self.bias))

    @property
    def experts(self) -> int:
        """Their number."""
        weight = self.casts[0] if self.weight is None else self.weight
        assert weight is not None
        return int(weight.shape[0])


class ExpertInputs(NamedTuple):
    """The inputs of an expert layer, whichever way it computes."""

    x: Tensor | ScaledTensor
    """[..., hidden], or codes of it [tokens, hidden] with the scales of recipe.output.a, or one for
    each row."""
    weights: Tensor
    """The weights of the routing, contiguous."""
    routing: Routing
    first: Projection
    second: Projection
    ids: Tensor
    activation: str
    recipe: Recipe
    dtype: torch.dtype
    """The dtype of the result."""


class Needs(NamedTuple):
    """Truth values: for each gradient whether it is wanted."""

    x: bool = False
    weights: bool = False
    first: bool = False
    second: bool = False
    first_bias: bool = False
    second_bias: bool = False

    @property
    def gate_up(self) -> bool:
        return self.x or self.weights or self.first or self.first_bias


class Made(NamedTuple):
    """The output of forward, and the intermediate values that backward may need."""

    out: Tensor
    x_transposed: ScaledTensor | None
    """The transposed cast of rows of x times the weights of the routing."""
    gate_up: Tensor | None
    """Rows of the first; None where it was not written."""
    h_transposed: ScaledTensor | None


def compute_experts(
    inputs: ExpertInputs, needs: Needs, out_dtype: torch.dtype | None = None
) -> Made:
    """needs: the gradients that backward is to give. For those of weights there are transposed
    casts (that of codes backward makes), and what the activation's gradient is worked out from.
    out_dtype: that of the sums, if they are to be of another than products."""
    x, weights, routing, first, second, _, activation, recipe, dtype = inputs
    offsets, sources, positions = routing
    output, grad_weight = recipe.output, recipe.grad_weight
    assert output is not None
    assert grad_weight is not None
    slots = positions.shape[-1]
    rows: ScaledTensor | None
    x_transposed = None
    if isinstance(x, ScaledTensor):
        rows = gather_codes(x, sources, slots)
    else:
        of_transpose = grad_weight.b if needs.first else None
        rows, x_transposed, *_ = cast_tokens(x, weights, routing, output.a, of_transpose)
    weight = first.casts[0]
    assert rows is not None
    assert weight is not None
    h: ScaledTensor | None
    gate_up = h_transposed = None
    writes_gate_up = needs.gate_up or needs.second
    if not writes_gate_up and gated_in_one(recipe, activation, weight, first.bias, dtype):
        h = gated_gemm(
            rows,
            weight,
            Rows(offsets),
            activation=activation,
            format=output.a,
            batch_invariant=output.batch_invariant,
        )
    else:
        of_h = output.a
        gate_up = grouped_product(output, rows, weight, offsets, dtype, first.bias, of_h)
        of_transpose = grad_weight.b if needs.second else None
        h, h_transposed, *_ = cast_as_wanted(
            Activated(gate_up, activation), of_h, of_transpose, offsets=offsets
        )
    y = grouped_product(output, h, second.casts[0], offsets, dtype, second.bias)
    out = combine(y, positions, weights, out_dtype=out_dtype or dtype)
    return Made(out, x_transposed, gate_up, h_transposed)


def cast_tokens(
    tokens: Tensor,
    weights: Tensor,
    routing: Routing,
    rows: Format | None,
    transposed: Format | None,
) -> AnyCasts:
    """Casts the rows of the routing, of tokens [..., cols]; and the transpose of these rows times
    their weights [..., k], as gradients by weights of experts take it."""
    offsets, sources, positions = routing
    slots = positions.shape[-1]
    if transposed is None:
        return cast_as_wanted(Gathered(tokens, sources, slots=slots), rows, None)
    gathered = Gathered(tokens, sources, slots=slots, transposed_factors=weights)
    return cast_as_wanted(gathered, rows, transposed, offsets=offsets)


def grouped_product(
    product: Product,
    a: ScaledTensor | None,
    b: ScaledTensor | None,
    offsets: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    cast_to: Format | None = None,
) -> Tensor:
    """Rows [R, out]. cast_to: the format of the cast that takes them."""
    assert a is not None
    assert b is not None
    out = None
    if (
        cast_to is not None and cast_to.granularity == "tensor"
    ):  # which sees all rows, those too that are nobody's
        out = a.data.new_zeros((a.shape[0], b.shape[1]), dtype=dtype)
    y: Tensor = grouped_gemm(
        a,
        b,
        Rows(offsets),
        bias=addable(bias, dtype),
        out_dtype=None if out is not None else dtype,
        fast_accumulation=product.fast_accumulation,
        batch_invariant=product.batch_invariant,
        out=out,
    )
    return y
