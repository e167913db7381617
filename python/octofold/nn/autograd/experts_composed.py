"""Experts by one product after another, differentiable, where the layer's one call has no place for
what goes beside its products or between them: adapters, a gate that is a model's own, and weights
that are trained in high precision on a GPU without grouped products of FP8.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import cast
from ..._ops.cast_sources import Gathered
from ..._ops.gemm_weight_only import grouped_gemm_weight_only, grouped_gemm_weight_only_gradient
from ..._ops.grouped_gemm import Rows
from ..._ops.routing import Routing, combine, combine_gradient, sort_by_expert
from ..casting.casts import transposed_weight, walkable
from .activated import activated
from .functions import differentiates, refuse_in_backward, save_tensors, saved_tensors
from .layer import Before, Chain, Layer
from .main_grad import to_main_grad
from .products import addable, grouped_product

_NAME: Final = "experts"

LowRank: TypeAlias = tuple[Tensor, Tensor]
"""A term a [experts, r, in], b [experts, out, r] beside the weights of experts: x · aᵀ · bᵀ."""

Adapters: TypeAlias = Mapping[str, LowRank] | None
"""Terms by the names of the weights that they are beside."""

Terms: TypeAlias = tuple[LowRank | None, LowRank | None]
"""The terms beside the two layers."""


def terms_of(
    operation: str, adapters: Adapters, names: Sequence[str], weights: Sequence[Any]
) -> Terms:
    """The terms beside two weights of these names. Raises InvalidArgumentError, which names the
    adapter, for those of other names or shapes, and where weights are not FP8."""
    for name, (a, b) in (adapters or {}).items():
        expected, got = f"{' or '.join(names)}, beside weights that are FP8", "another"
        if name in names and all(isinstance(weight, ScaledTensor) for weight in weights):
            (experts, out, inner), rank = weights[names.index(name)].shape, a.shape[1:2].numel()
            fits = (a.shape, b.shape) == ((experts, rank, inner), (experts, out, rank))
            if fits and rank > 0:
                continue
            expected = f"[{experts}, r, {inner}] and [{experts}, {out}, r]"
            got = f"{[*a.shape]} and {[*b.shape]}"
        raise invalid_argument(operation, f"adapters[{name!r}]", expected, got)
    first, second = ((adapters or {}).get(name) for name in names)
    return first, second


def composed_experts(
    chain: Chain,
    before: Before,
    layers: tuple[Layer, Layer],
    dtype: torch.dtype,
    terms: Terms = (None, None),
    gate: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """[..., hidden] in this dtype.

    layers: FP8 ones compute as the chain says; where one is trained the products of both are
        torch's, and on some GPUs these wait for the sizes of the groups, so that no CUDA graph can
        hold them.
    terms: added to the products, by torch's products too.
    gate: the function of rows between the products; None: the chain's activation.
    """
    x, weights, ids = before.routed()
    first, second = layers
    factors = [factor for term in terms for factor in term or ()]
    differentiates(chain.name, x, weights, first.bias, second.bias, *factors)
    routing = sort_by_expert(ids.reshape(-1, ids.shape[-1]), first.shape()[0])
    _, *places = routing
    is_frozen = not (first.weights or second.weights)
    layer = partial(_layer, chain, routing, is_frozen)
    rows = x.to(chain.weight_only or dtype).reshape(-1, x.shape[-1])
    are_tokens = is_frozen and terms[0] is None
    if not are_tokens:
        rows = _sorted(rows, *places)
    rows = layer(first, terms[0], rows, are_tokens)
    rows = activated(rows, chain.activation or "") if gate is None else gate(rows)
    rows = layer(second, terms[1], rows)
    y = _sums(rows, weights.view(routing.positions.shape), *places, dtype)
    return y.view(*x.shape[:-1], y.shape[-1])


def _layer(
    chain: Chain,
    routing: Routing,
    is_frozen: bool,
    layer: Layer,
    term: LowRank | None,
    rows: Tensor,
    are_tokens: bool = False,
) -> Tensor:
    """The result of a layer for rows, or for tokens, whose rows are read where they lie."""
    offsets, sources, positions = routing
    ends = offsets[1:]
    if is_frozen:
        weight, places = layer.rows(), (sources, positions) if are_tokens else (None, None)
        operands = weight.data, weight.scale, layer.bias, offsets, *places
        y = _frozen(rows, *operands, weight.granularity, chain)
    else:
        y = _grouped(rows, _wide(layer, rows.dtype), ends)
        if layer.bias is not None:
            bias = layer.bias.float().index_select(0, _owners(y, ends))  # whose gradient is a sum
            y = (y + bias).to(y.dtype)
    if term is not None:
        a, b = (tensor.to(rows.dtype).contiguous() for tensor in term)
        y = y + _grouped(_grouped(rows, a, ends), b, ends)
    elif not torch.is_grad_enabled():
        return y
    # Rows of nobody hold what memory held, which casts by one scale read; so do their gradients.
    return torch.where((sources >= 0).unsqueeze(-1), y, 0)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of each group by its own weights [out, in], with zeros beyond these up to 16 bytes, as
    torch's products take them."""
    out, inner = weights.shape[1:]
    above, beside = -out % 8, -inner % 8
    if above or beside:
        rows, weights = pad(rows, (0, beside)), pad(weights, (0, beside, 0, above))
    product: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    result: Tensor = product(rows, weights.transpose(1, 2), offs=ends)
    return result[:, :out]


def _wide(layer: Layer, dtype: torch.dtype) -> Tensor:
    if not layer.weights:
        weight: Tensor = layer.rows().dequantize(dtype)
        return weight
    return to_main_grad(layer.weights[0], layer.main_grads[0], dtype)


def _owners(rows: Tensor, ends: Tensor) -> Tensor:
    """The expert of each row, some expert of nobody's."""
    places = torch.arange(rows.shape[0], device=rows.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).clamp(max=ends.shape[0] - 1)


class _Frozen(torch.autograd.Function):
    """Rows by FP8 weights of groups, with gradients by rows and bias; with sources x has tokens,
    whose rows are read where they lie. Codes are kept for backward, and no copy of them."""

    @staticmethod
    def forward(ctx: Any, x: Any, codes: Tensor, scale: Tensor, *given: Any) -> Tensor:
        bias, offsets, sources, positions, ctx.granularity, ctx.chain = given
        save_tensors(ctx, codes, scale, offsets, positions)
        ctx.bias_dtype = None if bias is None else bias.dtype
        weight, product = ScaledTensor(codes, scale, ctx.granularity), ctx.chain.recipe.output
        dtype, bias, x = x.dtype, addable(bias, x.dtype), walkable(x)
        if sources is not None:
            x = Gathered(x, sources, slots=positions.shape[-1])
        if ctx.chain.weight_only is not None:
            options = {"bias": bias, "batch_invariant": product.batch_invariant}
            y: Tensor = grouped_gemm_weight_only(x, weight, Rows(offsets), **options)
            return y
        rows = cast(x, rows=product.a).rows
        return grouped_product(product, rows, weight, offsets, dtype, bias, product.a)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        codes, scale, offsets, positions = saved_tensors(ctx)
        weight, recipe = ScaledTensor(codes, scale, ctx.granularity), ctx.chain.recipe
        dx, d_bias, dy = None, None, walkable(dy)
        if ctx.needs_input_grad[3]:
            sums = dy.new_zeros(weight.shape[:2], dtype=torch.float32)
            d_bias = sums.index_add_(0, _owners(dy, offsets[1:]), dy.float()).to(ctx.bias_dtype)
        if ctx.needs_input_grad[0] and ctx.chain.weight_only is not None:
            options = {"batch_invariant": recipe.output.batch_invariant}
            dx = grouped_gemm_weight_only_gradient(dy, weight, Rows(offsets), **options)
        elif ctx.needs_input_grad[0]:
            a, b = cast(dy, rows=recipe.grad_input.a).rows, transposed_weight(weight, recipe)
            dx = grouped_product(recipe.grad_input, a, b, offsets, dy.dtype)
        if dx is not None and positions is not None:
            dx = combine(dx, positions)
        return dx, None, None, d_bias, *(None,) * 5


class _Sorted(torch.autograd.Function):
    """The rows of tokens, sorted by expert; those of nobody are some token's."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, sources: Tensor, positions: Tensor) -> Tensor:
        save_tensors(ctx, positions)
        return tokens.index_select(0, sources.clamp(min=0) // positions.shape[-1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        return combine(walkable(dy), *saved_tensors(ctx)), None, None


class _Sums(torch.autograd.Function):
    """The sums of each token's rows by weights."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, *given: Any) -> Tensor:
        sources, positions, dtype = given
        kept = rows if ctx.needs_input_grad[1] else None
        save_tensors(ctx, kept, weights, sources, positions)
        ctx.dtype = rows.dtype
        sums: Tensor = combine(walkable(rows), positions, weights, out_dtype=dtype)
        return sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        rows, weights, sources, positions = saved_tensors(ctx)
        dy, places = walkable(dy), sources.clamp(min=0)
        factors = weights.flatten().index_select(0, places).unsqueeze(-1)
        d_rows = (dy.index_select(0, places // positions.shape[-1]) * factors).to(ctx.dtype)
        d_weights = None if rows is None else combine_gradient(dy, walkable(rows), positions)
        return d_rows, d_weights, None, None, None


_frozen: Final[Callable[..., Tensor]] = _Frozen.apply
_sorted: Final[Callable[..., Tensor]] = _Sorted.apply
_sums: Final[Callable[..., Tensor]] = _Sums.apply
