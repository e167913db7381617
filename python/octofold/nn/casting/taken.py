"""Rows of what is cast already, and the layout of their scales."""

from typing import Final

import torch
from torch import Tensor

from ..._core.granularity import UNITS
from ..._core.scaled_tensor import ScaledTensor
from ..._ranks.wire import as_products_read

_is_compiling: Final = torch.compiler.is_compiling


def taken_rows(
    x: ScaledTensor, sources: Tensor, slots: int, factors: Tensor | None = None
) -> ScaledTensor:
    """The codes of the rows x[sources // slots], [rows, cols], as a cast of ops.Gathered orders
    them.

    x: [tokens, cols], a scale for each row or for 128 of its columns.
    sources: int32 [rows]; -1 stands for no row: some row is taken.
    factors: float32 [..., slots]: rows are multiplied by factors.flat[sources], which takes their
        scales alone.
    """
    assert UNITS[x.granularity].is_of_a_row
    places = sources.clamp(min=0)
    tokens = places if slots == 1 else places // slots
    data = _words(x.data).index_select(0, tokens).view(x.data.dtype)
    scale = x.scale.index_select(0, tokens)
    if factors is not None:
        of_rows = factors.reshape(-1).index_select(0, places)
        scale = scale * (of_rows if scale.dim() == 1 else of_rows.unsqueeze(-1))
    return ScaledTensor(data, as_products_read(scale, x.granularity), x.granularity)


def _words(codes: Tensor) -> Tensor:
    """Rows of codes as the widest words that they are made of: who copies rows copies these."""
    # Dynamo takes no offsets; those of what it traces here, messages of other ranks, are 0.
    offset = 0 if _is_compiling() else codes.storage_offset()
    for dtype in (torch.int64, torch.int32):
        if all(n % dtype.itemsize == 0 for n in (codes.shape[1], codes.stride(0), offset)):
            return codes.view(dtype)
    return codes.view(torch.uint8)
