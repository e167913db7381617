"""Tensors of high precision that cross a boundary, with gradients.

For layers that cast nothing before it: experts, whose rows are sorted first, and products of 16
bits. The others cross it in codes, inside their own functions.
"""

from typing import Any

import torch
from torch import Tensor

from .boundary import Boundary
from .first_order import refuse_in_backward


def entered(x: Tensor, boundary: Boundary) -> Tensor:
    """All tokens, of this rank's; backward adds the gradients of all ranks up."""
    y: Tensor = _Entered.apply(x, boundary)  # type: ignore[no-untyped-call]
    return y


def left(partial: Tensor, boundary: Boundary) -> Tensor:
    """This rank's tokens of the sum over ranks; backward gives each rank the gradient by all."""
    y: Tensor = _Left.apply(partial, boundary)  # type: ignore[no-untyped-call]
    return y


def added_once(bias: Tensor, boundary: Boundary) -> Tensor:
    """A bias for a sum over ranks: itself on the one that adds it, zeros on the others. Each of
    them has the whole gradient, as it has that of all tokens."""
    y: Tensor = _AddedOnce.apply(bias, boundary.adds_bias)  # type: ignore[no-untyped-call]
    return y


def _sent(tensor: Tensor, boundary: Boundary) -> Tensor:
    """Sends a tensor out through a boundary, summed in the dtype that the boundary wants."""
    wide = boundary.partial_dtype
    own = boundary.leave(tensor if wide is None else tensor.to(wide), tensor.dtype)
    return tensor.view_as(tensor) if own is tensor else own


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        whole: Tensor = boundary.whole(x, x.shape)
        return x.view_as(x) if whole is x else whole

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("distributed", dy)
        return _sent(dy, ctx.boundary), None


class _Left(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        return _sent(partial, boundary)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("distributed", dy)
        return ctx.boundary.whole(dy, dy.shape), None


class _AddedOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, adds: bool) -> Tensor:
        return bias.view_as(bias) if adds else torch.zeros_like(bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return dy, None
