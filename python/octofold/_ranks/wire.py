"""Exchanges between ranks: tensors, sums, and FP8 codes with their scales.

All of it is torch's functional collectives, which torch.compile and CUDA graphs take. Nothing here
has a gradient: autograd functions call it, forward and backward.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from .._core.formats import BY_COLUMNS, UNITS
from .._core.ops import ceil_divide
from .._core.scaled_tensor import ScaledTensor
from .._core.torch import FLOAT8
from . import Ranks, answered, require_agreed, words_of

_COLLECTIVES: Final = torch.ops._c10d_functional

_is_compiling: Final = torch.compiler.is_compiling


def gathered(operation: str, tensor: Tensor, ranks: Ranks, dim: int = 0) -> Tensor:
    """The tensors of all ranks, of one shape [...], one behind the other along a dimension."""
    if ranks.size == 1:
        return tensor
    sent = as_bytes(tensor).contiguous()
    gather, size = _COLLECTIVES.all_gather_into_tensor, ranks.size
    whole = _arrived(operation, tensor, ranks, lambda: gather(sent, size, ranks.name))
    if dim != 0:
        parts = whole.view(ranks.size, *sent.shape)
        whole = parts.movedim(0, dim).flatten(dim, dim + 1).contiguous()
    return whole.view(tensor.dtype)


def summed(operation: str, tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum over all ranks, on each of them."""
    if ranks.size == 1:
        return tensor
    sent = tensor.contiguous()
    reduce = _COLLECTIVES.all_reduce
    return _arrived(operation, tensor, ranks, lambda: reduce(sent, "sum", ranks.name))


def largest(operation: str, magnitudes: Tensor, ranks: Ranks) -> Tensor:
    """The largest of all ranks in each place of float32 numbers that are not negative; NaN where a
    rank has one. In the order of their bits, in which NaN is the largest, as backends differ in
    what their maximum makes of it."""
    if ranks.size == 1:
        return magnitudes
    # No sign. Not abs() before the view, as inductor has no collective of such a view.
    bits = magnitudes.contiguous().view(torch.int32) & 0x7FFFFFFF
    reduce = _COLLECTIVES.all_reduce
    found = _arrived(operation, magnitudes, ranks, lambda: reduce(bits, "max", ranks.name))
    return found.view(torch.float32)


def scattered_sum(operation: str, tensor: Tensor, ranks: Ranks, dim: int = 0) -> Tensor:
    """This rank's part of the sum over all ranks: of a dimension that is a multiple of them."""
    if ranks.size == 1:
        return tensor
    if dim != 0:
        tensor = torch.cat(tensor.chunk(ranks.size, dim))
    sent = tensor.contiguous()
    scatter, size = _COLLECTIVES.reduce_scatter_tensor, ranks.size
    return _arrived(operation, tensor, ranks, lambda: scatter(sent, "sum", size, ranks.name))


class InFlight(NamedTuple):
    """Rows that are on their way to this rank. What is computed before arrived() is called is
    computed beside the exchange: backends of GPUs have streams of their own for it."""

    operation: str
    tensor: Tensor
    """The rows that are being written, as bytes; with a single rank the rows themselves."""
    dtype: torch.dtype
    ranks: Ranks

    def arrived(self) -> Tensor:
        """The rows, when they are there."""
        if self.ranks.size == 1:
            return self.tensor
        rows = _arrived(self.operation, self.tensor, self.ranks, lambda: self.tensor)
        return rows.view(self.dtype)


def begin_exchange(
    operation: str,
    tensor: Tensor,
    ranks: Ranks,
    received: list[int] | None = None,
    sent: list[int] | None = None,
) -> InFlight:
    """An exchange of rows [..] that has begun.

    received, sent: how many rows come from each rank and go to each; None: equally many.
    """
    if ranks.size == 1:
        return InFlight(operation, tensor, tensor.dtype, ranks)
    rows = as_bytes(tensor).contiguous()
    equal = [rows.shape[0] // ranks.size] * ranks.size
    splits = received or equal, sent or equal
    exchange = _COLLECTIVES.all_to_all_single
    begun = _begun(operation, tensor, ranks, lambda: exchange(rows, *splits, ranks.name))
    return InFlight(operation, begun, tensor.dtype, ranks)


def exchanged(operation: str, tensor: Tensor, ranks: Ranks) -> Tensor:
    """Rows [..], equally many from each rank to each: the parts that the others had for this one,
    in the order of ranks."""
    return begin_exchange(operation, tensor, ranks).arrived()


def gathered_rows(
    operation: str, x: ScaledTensor, ranks: Ranks, dim: int, same_scales: bool
) -> ScaledTensor:
    """The codes of all ranks, x [..., cols], one behind the other along a dimension of rows, with
    their scales. same_scales: whether all ranks have the same, and none travel.

    Squares of 128x128 have to end where the rank's rows do.
    """
    data = gathered(operation, x.data, ranks, dim)
    if same_scales:
        return ScaledTensor(data, x.scale, x.granularity)
    if UNITS[x.granularity].is_of_a_row:
        scale = gathered(operation, x.scale, ranks, dim)
    else:
        leading = math.prod(x.data.shape[:dim])
        parts = x.scale.reshape(leading, -1, x.scale.shape[1])
        scale = gathered(operation, parts, ranks, 1).flatten(0, 1)
    return ScaledTensor(data, as_products_read(scale, x.granularity), x.granularity)


def gathered_columns(operation: str, x: ScaledTensor, ranks: Ranks, leading: int) -> ScaledTensor:
    """The codes of all ranks, x [rows, leading · cols], as [rows, leading · (ranks · cols)], with
    their scales. Those of whole rows are the same on all ranks, and do not travel; units of 128
    columns end where the ranks' do."""
    data = _columns(operation, x.data, ranks, leading)
    if UNITS[x.granularity].cols is None:
        return ScaledTensor(data, x.scale, x.granularity)
    scale = _columns(operation, x.scale, ranks, leading)
    return ScaledTensor(data, as_products_read(scale, x.granularity), x.granularity)


def _columns(operation: str, x: Tensor, ranks: Ranks, leading: int) -> Tensor:
    parts = x.reshape(x.shape[0], leading, x.shape[1] // max(leading, 1))
    return gathered(operation, parts, ranks, 2).flatten(1)


def as_products_read(scale: Tensor, granularity: str) -> Tensor:
    """Scales in the layout that is fastest where they are: on a GPU 1x128 ones lie column by
    column, each beginning at a multiple of 16 bytes."""
    if not scale.is_cuda or granularity not in BY_COLUMNS:
        return scale
    *leading, columns = scale.shape
    rows = math.prod(leading)
    placed = scale.new_empty((columns, ceil_divide(rows, 4) * 4))[:, :rows].t()
    return placed.view(scale.shape).copy_(scale)


def as_bytes(tensor: Tensor) -> Tensor:
    """FP8 codes as what every backend sends; anything else as it is."""
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor


def _begun(operation: str, tensor: Tensor, ranks: Ranks, send: Callable[[], Tensor]) -> Tensor:
    """The result of a collective that is under way."""
    if _is_compiling():
        return send()
    require_agreed(ranks, wait=not tensor.is_cuda)
    return answered(operation, words_of(tensor), ranks, send)


def _arrived(operation: str, tensor: Tensor, ranks: Ranks, send: Callable[[], Tensor]) -> Tensor:
    """The result of a collective, when it is there."""
    if _is_compiling():
        whole: Tensor = _COLLECTIVES.wait_tensor(send())
        return whole
    require_agreed(ranks, wait=not tensor.is_cuda)
    arrived: Tensor = answered(
        operation, words_of(tensor), ranks, lambda: _COLLECTIVES.wait_tensor(send())
    )
    return arrived
