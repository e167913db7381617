"""Boundaries of layers whose weights are split over the ranks of a group (tensor parallelism).

| tokens outside | boundary   | inwards                                    | outwards       |
|----------------|------------|--------------------------------------------|----------------|
| alike on all   | Replicated | each rank casts them, nothing travels      | all-reduce     |
| split          | Split      | cast where they are; codes, scales travel  | reduce-scatter |

What is cast has the bits of a cast of all tokens in one process. Scales that belong to the tokens
of several ranks (of a column of tokens, or of the whole tensor) are agreed on by an all-reduce of
largest magnitudes, [cols] numbers. Units of 128 tokens that straddle a border of ranks cannot be
cast on either side: then the tensor itself travels, and each rank casts all of it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._core.errors import UnsupportedError
from .._core.formats import Format
from .._core.granularity import UNITS
from .._core.scaled_tensor import ScaledTensor
from .._ops.cast import AnyCasts, Casts, cast
from .._ops.cast_sources import Source
from .._ranks.ranks import Ranks
from .._ranks.wire import gathered, gathered_columns, gathered_rows, largest, scattered_sum, summed
from ..nn.autograd.boundary import Boundary
from ..nn.casting.casts import cast_as_wanted, with_amax


@dataclass(frozen=True)
class Replicated(Boundary):
    """All ranks have all tokens.

    operation: in whose name errors are.
    partial_dtype: of what is summed over ranks; None: of the result.
    """

    operation: str
    ranks: Ranks
    partial_dtype: torch.dtype | None = None

    @property
    def adds_bias(self) -> bool:
        return self.ranks.rank == 0

    def leave(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return _in(dtype, summed(self.operation, partial, self.ranks))


@dataclass(frozen=True)
class Split(Boundary):
    """Each rank has an equal part of the tokens.

    operation, partial_dtype: as in Replicated.
    dim: the dimension of tokens [..., cols] that is split.
    """

    operation: str
    ranks: Ranks
    dim: int = 0
    partial_dtype: torch.dtype | None = None

    @property
    def adds_bias(self) -> bool:
        return self.ranks.rank == 0

    def cast(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None = None,
        scale: Tensor | None = None,
        complete: bool = False,
    ) -> AnyCasts:
        if rows is None and transposed is None:
            return Casts(None, None)
        shape = _shape(source)
        if self._straddles(shape, rows, transposed):
            return self._cast_of_all(source, rows, transposed, columns, complete)
        casts = self._cast_here(source, rows, transposed, columns)
        of_rows, of_columns = casts.rows, casts.transposed
        if of_rows is not None:
            same = UNITS[of_rows.granularity].rows is None
            of_rows = gathered_rows(self.operation, of_rows, self.ranks, self.dim, same)
        if complete:
            of_columns = self.whole(of_columns, shape)
        return casts._replace(rows=of_rows, transposed=of_columns)

    def whole(self, own: Tensor | ScaledTensor | None, shape: torch.Size) -> Any:
        if isinstance(own, ScaledTensor):
            return gathered_columns(self.operation, own, self.ranks, math.prod(shape[: self.dim]))
        return None if own is None else gathered(self.operation, own, self.ranks, self.dim)

    def leave(self, partial: Tensor, dtype: torch.dtype) -> Tensor:
        return _in(dtype, scattered_sum(self.operation, partial, self.ranks, self.dim))

    def total(self, own: Tensor) -> Tensor:
        return summed(self.operation, own, self.ranks)

    def _straddles(self, shape: torch.Size, rows: Format | None, transposed: Format | None) -> bool:
        """True if units of scales may be of tokens of several ranks, and not of all."""
        tokens = {
            None if rows is None else UNITS[rows.granularity].rows,
            None if transposed is None else UNITS[transposed.granularity].cols,
        }
        return math.prod(shape[self.dim : -1]) % 128 != 0 and len(tokens - {1, None}) > 0

    def _cast_here(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None,
    ) -> AnyCasts:
        """Casts of this rank's tokens, with the scales that all tokens give."""
        agreed_rows = rows is not None and UNITS[rows.granularity].rows is None
        agreed_columns = transposed is not None and UNITS[transposed.granularity].cols is None
        if not agreed_rows and not agreed_columns:
            return cast_as_wanted(source, rows, transposed, columns=columns)
        magnitudes = "amax" if columns is None else "both"
        if rows is None:
            first = cast(source, transposed=transposed, columns=magnitudes)
        else:
            first = cast(source, rows=rows, columns=magnitudes)
        assert first.amax is not None
        amax = largest(self.operation, first.amax, self.ranks)
        of_all = cast(
            source,
            rows=with_amax(rows, amax) if agreed_rows else None,
            transposed=with_amax(transposed, amax) if agreed_columns else transposed,
        )
        of_rows = of_all.rows if agreed_rows else first.rows
        of_columns = of_all.transposed
        return Casts(of_rows, of_columns, first.sums, None, first.norm)

    def _cast_of_all(
        self,
        source: Tensor | Source,
        rows: Format | None,
        transposed: Format | None,
        columns: str | None,
        complete: bool,
    ) -> AnyCasts:
        """Casts of all ranks' tokens, which travel as they are."""
        if not isinstance(source, Tensor) or (transposed is not None and not complete):
            shape = _shape(source)
            raise UnsupportedError(
                f"{self.operation}: argument 'x': expected a multiple of 128 tokens on each rank, "
                f"as the recipe has a scale for 128 tokens, got {list(shape)} on {self.ranks}"
            )
        x = gathered(self.operation, source, self.ranks, self.dim)
        casts = cast_as_wanted(x, rows, transposed)
        sums = None if columns is None else source.flatten(0, -2).sum(0, dtype=torch.float32)
        return casts._replace(sums=sums)


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _shape(source: Tensor | Source) -> torch.Size:
    """The shape of the matrix [..., cols] that is cast."""
    x: Tensor = source if isinstance(source, Tensor) else source.operands()[0][0]
    return x.shape
