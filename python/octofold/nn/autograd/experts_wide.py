"""Experts whose weights are trained in high precision, where a GPU has no grouped products of FP8:
by torch's own grouped product."""

from typing import Any

import torch
from torch import Tensor

from ..._ops.routing import sort_by_expert
from .activated import activated
from .layer import Before, Chain, Layer
from .main_grad import to_main_grad


def wide_experts(
    chain: Chain, before: Before, layers: tuple[Layer, Layer], dtype: torch.dtype
) -> Tensor:
    """[..., hidden] in this dtype, by torch's own grouped product: on some GPUs it waits for the
    sizes of the groups, so that no CUDA graph can hold it."""
    x, weights, ids = before.routed()
    offsets, sources, positions = sort_by_expert(ids, layers[0].shape()[0])
    slots = positions.shape[-1]
    places = torch.arange(sources.shape[0], device=x.device, dtype=offsets.dtype)
    is_used = (places < offsets[-1]).unsqueeze(-1)
    owners = torch.searchsorted(offsets[1:], places, right=True).clamp(max=offsets.shape[0] - 2)
    x = x.to(dtype).reshape(-1, x.shape[-1])
    rows = torch.where(is_used, x.index_select(0, sources.clamp(min=0) // slots), 0)
    assert chain.activation is not None
    for layer in layers:
        rows = rows if layer is layers[0] else activated(rows, chain.activation)
        products = _grouped(rows, _weight_of(layer, dtype).transpose(1, 2), offsets[1:])
        if layer.bias is not None:
            bias = layer.bias.float().index_select(0, owners)  # whose gradient is a sum
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


def _weight_of(layer: Layer, dtype: torch.dtype) -> Tensor:
    if not layer.weights:
        wide: Tensor = layer.rows().dequantize(dtype)
        return wide
    (weight,), (main_grad,) = layer.weights, layer.main_grads
    return to_main_grad(weight, main_grad, dtype)
