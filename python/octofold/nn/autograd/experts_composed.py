"""Experts by one product after another, differentiable, where the layer's one call has no place for
what goes beside its products or between them: adapters, a gate that is a model's own, and weights
that are trained in high precision on a GPU without grouped products of FP8.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import cast
from ..._ops.cast_sources import Gathered
from ..._ops.gemm_weight_only import grouped_gemm_weight_only, grouped_gemm_weight_only_gradient
from ..._ops.grouped_gemm import Rows
from ..._ops.routing import Routing, combine, combine_gradient, sort_by_expert
from ..casting.casts import transposed_weight, walkable
from .activated import activated
from .functions import refuse_in_backward, save_tensors, saved_tensors
from .layer import Before, Chain, Layer
from .main_grad import to_main_grad
from .products import addable, grouped_product

_NAME: Final = "experts"

LowRank: TypeAlias = tuple[Tensor, Tensor]
"""A term a [experts, r, in], b [experts, out, r] beside the weights of experts: x · aᵀ · bᵀ."""

Terms: TypeAlias = tuple[LowRank | None, LowRank | None]
"""Those beside the two layers."""

NO_TERMS: Final[Terms] = (None, None)


def terms_of(
    operation: str, adapters: Mapping[str, LowRank] | None, weights: Mapping[str, Any]
) -> Terms:
    """The terms of adapters by the names of weights. Raises InvalidArgumentError, which names the
    adapter, for those of other names or shapes, and for those of weights that are not FP8."""
    for name, (a, b) in (adapters or {}).items():
        weight = weights.get(name)
        if not all(isinstance(one, ScaledTensor) for one in (weight, *weights.values())):
            expected = f"none but of FP8 weights (of these: {', '.join(weights)})"
            raise invalid_argument(operation, f"adapters[{name!r}]", expected, "one of others")
        assert isinstance(weight, ScaledTensor)
        experts, out, inner = weight.shape
        rank = a.shape[1] if a.dim() == 3 else 0
        expected_shapes = [experts, rank, inner], [experts, out, rank]
        if ([*a.shape], [*b.shape]) != expected_shapes:
            expected = f"([{experts}, r, {inner}], [{experts}, {out}, r])"
            got = f"({[*a.shape]}, {[*b.shape]})"
            raise invalid_argument(operation, f"adapters[{name!r}]", expected, got)
    first, second = ((adapters or {}).get(name) for name in weights)
    return first, second


def composed_experts(
    chain: Chain,
    before: Before,
    layers: tuple[Layer, Layer],
    dtype: torch.dtype,
    terms: Terms = NO_TERMS,
    gate: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """[..., hidden] in this dtype.

    layers: FP8 ones compute as the chain says; the products of others are torch's, and on some GPUs
        these wait for the sizes of the groups, so that no CUDA graph can hold them.
    terms: added to the products, by torch's products too.
    gate: the function of rows between the products; None: the chain's activation.
    """
    x, weights, ids = before.routed()
    routing = Routing(*sort_by_expert(ids, layers[0].shape()[0]))
    offsets, sources, positions = routing
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    x = x.to(chain.weight_only or dtype).reshape(-1, x.shape[-1])
    positions = positions.view(-1, positions.shape[-1])
    if gate is None:
        assert chain.activation is not None
        gate = partial(activated, activation=chain.activation)
    is_frozen = not any(layer.weights for layer in layers)
    rows: Tensor | None = None
    for layer, term in zip(layers, terms, strict=True):
        rows = rows if rows is None else gate(rows)
        bias = layer.bias
        source = (x, sources, positions) if rows is None else (rows, None, None)
        if rows is None and (term is not None or not is_frozen):
            rows = _gather(x, sources, positions)
        if is_frozen:
            is_trained = torch.is_grad_enabled() and bias is not None and bias.requires_grad
            own, bias = (None, bias) if is_trained else (bias, None)
            how = _How(layer.rows().granularity, chain.recipe, chain.weight_only is not None)
            operands = layer.rows().data, layer.rows().scale, addable(own, x.dtype), offsets
            products = _frozen_product(*source, *operands, how)
        else:
            assert rows is not None
            products = _grouped(rows, _weight_of(layer, x.dtype), offsets[1:])
        if term is not None:
            assert rows is not None
            products = products + _low_rank(rows, term, offsets[1:])
        if bias is not None:
            added = bias.float().index_select(0, owners)  # whose gradient is a sum
            products = (products + added).to(x.dtype)
        # Rows of nobody hold what memory held, and so would their gradients.
        rows = products
        if not is_frozen or term is not None or torch.is_grad_enabled():
            rows = torch.where(is_used, products, 0)
    assert rows is not None
    y = _combine(rows, weights.view(positions.shape), sources, positions, dtype)
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


class _How(NamedTuple):
    """All but tensors that a product with FP8 weights needs to know."""

    granularity: str
    recipe: Recipe
    weight_only: bool


class _Frozen(torch.autograd.Function):
    """Rows by FP8 weights of groups. Codes are kept for backward, and no copy of them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sources: Tensor | None,
        positions: Tensor | None,
        codes: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        offsets: Tensor,
        how: _How,
    ) -> Tensor:
        save_tensors(ctx, positions, codes, scale, offsets)
        ctx.how = how
        weight, output = ScaledTensor(codes, scale, how.granularity), how.recipe.output
        assert output is not None
        source: Any = walkable(x)
        if sources is not None:
            assert positions is not None
            source = Gathered(source, sources, slots=positions.shape[-1])
        if not how.weight_only:
            a = cast(source, rows=output.a).rows
            return grouped_product(output, a, weight, offsets, x.dtype, bias, output.a)
        invariant, groups = output.batch_invariant, Rows(offsets)
        y: Tensor = grouped_gemm_weight_only(
            source, weight, groups, bias=bias, batch_invariant=invariant
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        positions, codes, scale, offsets = saved_tensors(ctx)
        recipe, dy = ctx.how.recipe, walkable(dy)
        weight, product = ScaledTensor(codes, scale, ctx.how.granularity), recipe.grad_input
        if ctx.how.weight_only:
            invariant, groups = recipe.output.batch_invariant, Rows(offsets)
            dx = grouped_gemm_weight_only_gradient(dy, weight, groups, batch_invariant=invariant)
        else:
            a, b = cast(dy, rows=product.a).rows, transposed_weight(weight, recipe)
            dx = grouped_product(product, a, b, offsets, dy.dtype)
        return combine(dx, positions) if positions is not None else dx, *(None,) * 7


class _Gathered(torch.autograd.Function):
    """The rows of tokens, sorted by expert; those of nobody are some token's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sources: Tensor, positions: Tensor) -> Tensor:
        save_tensors(ctx, positions)
        return x.index_select(0, sources.clamp(min=0) // positions.shape[-1])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dx)
        (positions,) = saved_tensors(ctx)
        return combine(walkable(dx), positions), None, None


class _Combined(torch.autograd.Function):
    """The weighted sums of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weights: Tensor,
        sources: Tensor,
        positions: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        kept = y if ctx.needs_input_grad[1] else None
        save_tensors(ctx, kept, weights, sources, positions)
        ctx.dtype = y.dtype
        sums: Tensor = combine(walkable(y), positions, weights, out_dtype=dtype)
        return sums

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        y, weights, sources, positions = saved_tensors(ctx)
        dy, places = walkable(dy), sources.clamp(min=0)
        of_weights = None if y is None else combine_gradient(dy, walkable(y), positions)
        of_y = None
        if ctx.needs_input_grad[0]:
            factors = weights.flatten().index_select(0, places).unsqueeze(-1)
            of_y = (dy.index_select(0, places // positions.shape[-1]) * factors).to(ctx.dtype)
        return of_y, of_weights, None, None, None


_frozen_product: Final[Callable[..., Tensor]] = _Frozen.apply
_gather: Final[Callable[..., Tensor]] = _Gathered.apply
_combine: Final[Callable[..., Tensor]] = _Combined.apply
