"""The data of a token that travels: its codes, their scales, and its experts with their weights, as
bytes of one row, so that there is one exchange.

    ┌────────────────────┬──────────────────┬──────────────┬───────────────┬───┐
    │ codes, or x itself │ scales (float32) │ ids (int32)  │ weights (f32) │ 0 │
    │ hidden             │ 4 · hidden / 128 │ 4 · k        │ 4 · k         │   │  bytes
    └────────────────────┴──────────────────┴──────────────┴───────────────┴───┘
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.ops import ceil_divide
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES
from ..._ops.cast import cast
from ..._ops.cast_sources import Gathered

_ALIGNMENT: Final = 16
"""Bytes at a multiple of which a row begins, and what is behind its first field."""


class Field(NamedTuple):
    """A field of a row: so many numbers of a dtype."""

    dtype: torch.dtype
    numbers: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.numbers * self.dtype.itemsize


def packed(parts: Sequence[Tensor]) -> Tensor:
    """Matrices [rows, numbers] as rows of so many bytes, a multiple of 16, in words of 4 bytes if
    the parts are made of such."""
    words = all(part.shape[1] * part.dtype.itemsize % 4 == 0 for part in parts)
    word = torch.int32 if words else torch.uint8
    pieces, size = [], 0
    for index, part in enumerate(parts):
        piece = part.contiguous().view(word)
        pieces.append(piece)
        size += piece.shape[1] * word.itemsize
        if index in (0, len(parts) - 1) and size % _ALIGNMENT:
            room = -size % _ALIGNMENT
            pieces.append(piece.new_zeros((piece.shape[0], room // word.itemsize)))
            size += room
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


def unpacked(rows: Tensor, fields: Sequence[Field]) -> list[Tensor]:
    """Views of the fields that packed() was given."""
    rows = rows.view(torch.uint8)
    views, at = [], 0
    for index, field in enumerate(fields):
        views.append(rows[:, at : at + field.size].view(field.dtype))
        at += field.size
        if index == 0:
            at += -at % _ALIGNMENT
    return views


class Tokens(NamedTuple):
    """Rows of tokens [rows, hidden] as they travel: themselves, or as codes."""

    data: Tensor
    scale: Tensor | None = None
    """float32 [rows, numbers of scales]; None: these are no codes."""

    @property
    def tensors(self) -> list[Tensor]:
        return [self.data] if self.scale is None else [self.data, self.scale]


def tokens_of(x: Tensor, sources: Tensor, ranks: int, format: Format | None) -> Tokens:
    """The rows x[sources // ranks], cast to a format, or as they are. What has no source is
    undefined. One scale of all rows travels with each of them."""
    if format is None and x.shape[0] == 0:
        return Tokens(x.new_zeros((sources.shape[0], x.shape[1])))
    if format is None:
        return Tokens(x.index_select(0, sources.clamp(min=0) // ranks))
    codes = cast(Gathered(x, sources, slots=ranks), rows=format).rows
    scale = codes.scale
    if codes.granularity == "tensor":
        scale = scale.expand(sources.shape[0])
    return Tokens(codes.data, scale if scale.dim() == 2 else scale.unsqueeze(1))


def token_fields(hidden: int, dtype: torch.dtype, format: Format | None) -> list[Field]:
    """The fields of a row as tokens_of() makes them."""
    if format is None:
        return [Field(dtype, hidden)]
    scales = ceil_divide(hidden, 128) if format.granularity == "1x128" else 1
    return [Field(DTYPES[format.dtype], hidden), Field(torch.float32, scales)]


def arrived_tokens(views: list[Tensor], format: Format | None) -> Tensor | ScaledTensor:
    """The tokens of the first views of unpacked(), which are taken off the list. Codes have a scale
    for each row where there was one for all."""
    data = views.pop(0)
    if format is None:
        return data
    scale = views.pop(0).contiguous()
    if format.granularity == "1x128":
        return ScaledTensor(data, scale, "1x128")
    return ScaledTensor(data, scale.squeeze(1), "channel")
