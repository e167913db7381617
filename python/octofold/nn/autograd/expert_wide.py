"""Experts whose weights stay in high precision, and are trained, where a GPU has no grouped
products of FP8: as torch computes them."""

from typing import Any

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from .activated import activated
from .expert_chain import Projection
from .expert_inputs import Tokens
from .first_order import refuse_in_backward
from .main_grad import mark_gradient


def wide_experts(
    tokens: Tokens,
    first: Projection,
    second: Projection,
    activation: str,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """[..., hidden] in this dtype, by torch's own grouped product: on some GPUs it waits for the
    sizes of the groups, so that no CUDA graph can hold it."""
    x, weights, (offsets, sources, positions), _ = tokens
    slots = positions.shape[-1]
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    x = x.to(dtype).reshape(-1, x.shape[-1])
    rows = torch.where(is_used, x.index_select(0, sources.clamp(min=0) // slots), 0)
    for projection in (first, second):
        rows = rows if projection is first else activated(rows, activation)
        products = _grouped(rows, _weight_of(projection, dtype).transpose(1, 2), offsets[1:])
        if projection.bias is not None:
            bias = projection.bias.float().index_select(0, owners)  # whose gradient is a sum
            products = (products + bias).to(dtype)
        rows = torch.where(is_used, products, 0)
    taken = rows.index_select(0, positions.clamp(min=0).flatten())
    taken = taken.view(*positions.shape, rows.shape[1])
    shares = torch.where(positions >= 0, weights, 0).unsqueeze(-1)
    return (taken.float() * shares).sum(-2).to(dtype)


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of each group by its own weights [in, out]."""
    product: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    result: Tensor = product(rows, weights, offs=ends)
    return result


def _weight_of(projection: Projection, dtype: torch.dtype) -> Tensor:
    weight, codes = projection.weight, projection.casts[0]
    if weight is None:
        assert codes is not None
        wide: Tensor = codes.dequantize(dtype)
        return wide
    if projection.main_grad is not None:
        weight = _ToMainGrad.apply(weight, projection.main_grad)  # type: ignore[no-untyped-call]
    return weight.to(dtype)


class _ToMainGrad(torch.autograd.Function):
    """A weight whose gradient is added to its main_grad."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, main_grad: Tensor) -> Tensor:
        ctx.weight, ctx.main_grad = weight, main_grad
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("experts", gradient)
        ctx.main_grad.add_(gradient)
        mark_gradient(ctx.weight)
        return None, None
