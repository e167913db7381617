"""Experts by one product after another, differentiable, where the layer's one call has no place for
what goes beside its products or between them: adapters, a gate that is a model's own, and weights
that are trained in high precision on a GPU without grouped products of FP8.
"""

from collections.abc import Callable, Mapping, Sequence
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
from ..._ops.routing import combine, combine_gradient, sort_by_expert
from ..casting.casts import transposed_weight, walkable
from .activated import activated
from .functions import refuse_in_backward, save_tensors, saved_tensors
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
        expected, got = f"one of FP8 weights, {', '.join(names)}", "one of others"
        if name in names and all(isinstance(weight, ScaledTensor) for weight in weights):
            (experts, out, inner), rank = weights[names.index(name)].shape, a.shape[1:2]
            if (a.shape, b.shape) == ((experts, *rank, inner), (experts, out, *rank)):
                continue
            expected = f"([{experts}, r, {inner}], [{experts}, {out}, r])"
            got = f"({[*a.shape]}, {[*b.shape]})"
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

    layers: FP8 ones compute as the chain says; the products of others are torch's, and on some GPUs
        these wait for the sizes of the groups, so that no CUDA graph can hold them.
    terms: added to the products, by torch's products too.
    gate: the function of rows between the products; None: the chain's activation.
    """
    x, weights, ids = before.routed()
    offsets, sources, positions = sort_by_expert(ids, layers[0].shape()[0])
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    rows = x.to(chain.weight_only or dtype).reshape(-1, x.shape[-1])
    positions = positions.view(-1, positions.shape[-1])
    is_frozen = not any(layer.weights for layer in layers)
    for layer, term in zip(layers, terms, strict=True):
        bias, places_of = layer.bias, (sources, positions)
        if layer is not layers[0]:
            rows = gate(rows) if gate is not None else activated(rows, chain.activation or "")
        if layer is not layers[0] or term is not None or not is_frozen:
            rows = rows if layer is not layers[0] else _route(rows, None, *places_of, rows.dtype)
            places_of = (None, None)
        if is_frozen:
            is_trained = torch.is_grad_enabled() and bias is not None and bias.requires_grad
            own, bias = (None, bias) if is_trained else (bias, None)
            weight, how = layer.rows(), (chain.recipe, chain.weight_only is not None)
            operands = weight.data, weight.scale, addable(own, rows.dtype), offsets
            products = _frozen(rows, *places_of, *operands, weight.granularity, *how)
        else:
            products = _grouped(rows, _weight_of(layer, rows.dtype), offsets[1:])
        if term is not None:
            products = products + _low_rank(rows, term, offsets[1:])
        if bias is not None:
            added = bias.float().index_select(0, owners)  # whose gradient is a sum
            products = (products + added).to(rows.dtype)
        # Rows of nobody hold what memory held, and so would their gradients.
        is_seen = not is_frozen or term is not None or torch.is_grad_enabled()
        rows = torch.where(is_used, products, 0) if is_seen else products
    y = _route(rows, weights.view(positions.shape), sources, positions, dtype)
    return y.view(*before.x.shape[:-1], y.shape[-1])


def _low_rank(rows: Tensor, term: LowRank, ends: Tensor) -> Tensor:
    """Ranks are filled up to 16 bytes, as torch's products take them on GPUs."""
    a, b = (tensor.to(rows.dtype) for tensor in term)
    if missing := -a.shape[1] % 8:
        a, b = pad(a, (0, 0, 0, missing)), pad(b, (0, missing))
    return _grouped(_grouped(rows, a, ends), b, ends)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of each group by its own weights [out, in]."""
    product: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    result: Tensor = product(rows, weights.transpose(1, 2), offs=ends)
    return result


def _weight_of(layer: Layer, dtype: torch.dtype) -> Tensor:
    if not layer.weights:
        wide: Tensor = layer.rows().dequantize(dtype)
        return wide
    (weight,), (main_grad,) = layer.weights, layer.main_grads
    return to_main_grad(weight, main_grad, dtype)


class _Frozen(torch.autograd.Function):
    """Rows by FP8 weights of groups; with sources x has tokens, whose rows are read where they lie.
    Codes are kept for backward, and no copy of them."""

    @staticmethod
    def forward(ctx: Any, x: Any, *given: Any) -> Tensor:
        sources, positions, codes, scale, bias, offsets, *ctx.how = given
        save_tensors(ctx, positions, codes, scale, offsets)
        granularity, recipe, weight_only = ctx.how
        weight, output, dtype = ScaledTensor(codes, scale, granularity), recipe.output, x.dtype
        x = walkable(x)
        x = x if sources is None else Gathered(x, sources, slots=positions.shape[-1])
        if weight_only:
            options = {"bias": bias, "batch_invariant": output.batch_invariant}
            y: Tensor = grouped_gemm_weight_only(x, weight, Rows(offsets), **options)
            return y
        rows = cast(x, rows=output.a).rows
        return grouped_product(output, rows, weight, offsets, dtype, bias, output.a)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        positions, codes, scale, offsets = saved_tensors(ctx)
        granularity, recipe, weight_only = ctx.how
        dy, weight = walkable(dy), ScaledTensor(codes, scale, granularity)
        if weight_only:
            options = {"batch_invariant": recipe.output.batch_invariant}
            dx = grouped_gemm_weight_only_gradient(dy, weight, Rows(offsets), **options)
        else:
            a, b = cast(dy, rows=recipe.grad_input.a).rows, transposed_weight(weight, recipe)
            dx = grouped_product(recipe.grad_input, a, b, offsets, dy.dtype)
        return combine(dx, positions) if positions is not None else dx, *(None,) * 9


class _Routed(torch.autograd.Function):
    """The rows of tokens, sorted by expert (those of nobody are some token's); or, with weights,
    the tokens' sums of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Any, *given: Any) -> Tensor:
        sources, positions, dtype = given
        kept = x if ctx.needs_input_grad[1] else None
        save_tensors(ctx, kept, weights, sources, positions)
        ctx.dtype = x.dtype
        if weights is None:
            return x.index_select(0, sources.clamp(min=0) // positions.shape[-1])
        sums: Tensor = combine(walkable(x), positions, weights, out_dtype=dtype)
        return sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        x, weights, sources, positions = saved_tensors(ctx)
        dy, places = walkable(dy), sources.clamp(min=0)
        if weights is None:
            return combine(dy, positions), None, None, None, None
        factors = weights.flatten().index_select(0, places).unsqueeze(-1)
        dx = (dy.index_select(0, places // positions.shape[-1]) * factors).to(ctx.dtype)
        of_weights = None if x is None else combine_gradient(dy, walkable(x), positions)
        return dx, of_weights, None, None, None


_frozen: Final[Callable[..., Tensor]] = _Frozen.apply
_route: Final[Callable[..., Tensor]] = _Routed.apply
