"""Rotary embeddings, with a gradient by what is rotated."""

from typing import Any

import torch
from torch import Tensor

from ..._ops.rotary import rotary
from .first_order import refuse_in_backward
from .flat import save_tensors, saved_tensors


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, tokens, heads, head_dim] by cos and sin [batch or 1, tokens, head_dim], which get
    no gradient; differentiable by x."""
    y: Tensor
    if torch.is_grad_enabled() and x.requires_grad:
        y = _Rotated.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return y
    y = rotary(_with_runs(x), _with_runs(cos), _with_runs(sin))
    return y


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = _with_runs(cos), _with_runs(sin)
        save_tensors(ctx, cos, sin)
        y: Tensor = rotary(_with_runs(x), cos, sin)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn.convert_rotary", dy)
        cos, sin = saved_tensors(ctx)
        return rotary(_with_runs(dy), cos, sin, inverse=True), None, None


def _with_runs(x: Tensor) -> Tensor:
    """With a contiguous last dimension, copied where it has none."""
    return x if x.stride(-1) == 1 else x.contiguous()
