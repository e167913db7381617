"""Boundaries of a layer: its tensors come from, and go to, this process or all ranks of a group.

A layer of a group of ranks (tensor parallelism) has a part of the weight on each. Its tokens cross
a boundary where they enter, x in forward and dY in backward, and where they leave, y in forward and
dX in backward. Nothing else in a layer's function depends on there being others. Boundaries are
values; those of torch.distributed are in octofold.distributed.

Layers that cast nothing before a boundary cross it in high precision, by the functions with
gradients here: experts, whose rows are sorted first, and products of 16 bits. The others cross it
in codes, inside their own functions.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import Source
from ..casting.casts import cast_as_wanted
from .functions import refuse_in_backward


class Boundary:
    """A side of a layer, which tokens [..., cols] cross inwards and outwards: that of a layer which
    is whole in this process, where nothing happens. Those of several ranks are made of it."""

    partial_dtype: torch.dtype | None = None
    """The dtype in which products that reduce() sums are wanted; None: that of the result."""

    def cast(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None = None,
        complete: bool = False,
    ) -> AnyCasts:
        """Inwards: the cast of all tokens that the layer computes with, from this rank's. Sums are
        of this rank's tokens, and so is the transpose, which gather() completes later.

        columns: as in cast_as_wanted(). complete: whether the transpose is of all tokens.
        """
        return cast_as_wanted(source, rows, transposed, columns=columns)

    def gather(self, local: Tensor | ScaledTensor | None, shape: torch.Size) -> Any:
        """All tokens, of this rank's: [..., cols] in high precision, or a transpose [cols, tokens]
        that cast() gave. shape: [..., cols] of this rank's tokens."""
        return local

    def reduce(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        """Outwards: this rank's tokens of the sum over ranks of what each has computed, in this
        dtype. A sum that has it already is not converted, as that would be another name of the same
        tensor, which torch.compile 2.11 loses the gradient by."""
        return partial

    def all_reduce(self, local: Tensor) -> Tensor:
        """The sum over all tokens of a sum over this rank's."""
        return local

    @property
    def adds_bias(self) -> bool:
        """True if this rank adds the bias to what reduce() sums."""
        return True


ONE_PROCESS: Final = Boundary()


class Sides(NamedTuple):
    """The boundaries where tokens enter a layer in forward, and where they leave it."""

    entry: Boundary = ONE_PROCESS
    exit: Boundary = ONE_PROCESS
    compute: Callable[..., tuple[Tensor, Tensor]] | None = None
    """Computes layers that cast before they send, as layer_call.in_one_process() does where nobody
    sends. None: of experts, who send what they have in high precision."""


def sides_of(sides: Sides | None) -> tuple[Boundary, Boundary]:
    """Entry and exit of a layer; None: of one that is whole in this process, as every version of
    torch.compile knows None."""
    return (ONE_PROCESS, ONE_PROCESS) if sides is None else (sides.entry, sides.exit)


def gather_tokens(x: Tensor, boundary: Boundary) -> Tensor:
    """All tokens, of this rank's; backward adds the gradients of all ranks up."""
    y: Tensor = _GatherTokens.apply(x, boundary)  # type: ignore[no-untyped-call]
    return y


def reduce_partial(partial: Tensor, boundary: Boundary) -> Tensor:
    """This rank's tokens of the sum over ranks; backward gives each rank the gradient by all."""
    y: Tensor = _ReducePartial.apply(partial, boundary)  # type: ignore[no-untyped-call]
    return y


def bias_on_one_rank(bias: Tensor, boundary: Boundary) -> Tensor:
    """A bias for a sum over ranks: itself on the one that adds it, zeros on the others. Each of
    them has the whole gradient, as it has that of all tokens."""
    y: Tensor = _BiasOnOneRank.apply(bias, boundary.adds_bias)  # type: ignore[no-untyped-call]
    return y


def _sent(tensor: Tensor, boundary: Boundary) -> Tensor:
    """Sends a tensor out through a boundary, summed in the dtype that the boundary wants."""
    wide = boundary.partial_dtype
    local = boundary.reduce(tensor if wide is None else tensor.to(wide), tensor.dtype)
    return tensor.view_as(tensor) if local is tensor else local


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        whole: Tensor = boundary.gather(x, x.shape)
        return x.view_as(x) if whole is x else whole

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("distributed", dy)
        return _sent(dy, ctx.boundary), None


class _ReducePartial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        return _sent(partial, boundary)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("distributed", dy)
        return ctx.boundary.gather(dy, dy.shape), None


class _BiasOnOneRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, adds: bool) -> Tensor:
        return bias.view_as(bias) if adds else torch.zeros_like(bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return dy, None
