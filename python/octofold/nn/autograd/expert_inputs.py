"""The tokens of an expert layer and where they go, whichever way it computes."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..._ops.routing import Routing, sort_by_expert
from ..casting.casts import walkable


class Tokens(NamedTuple):
    """The inputs of an expert layer beside its weights and biases."""

    x: Tensor
    """[..., hidden], of at least two dimensions, walkable."""
    weights: Tensor
    """The weights of the routing, float32 [..., k]."""
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
    return Tokens(walkable(x), topk_weights.to(torch.float32), routing, topk_ids)
