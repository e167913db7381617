"""Layers with FP8 weights, cut for a group of ranks: a rank's part of a weight, whose scales may
straddle two ranks' parts."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

from ..._core.errors import invalid_argument
from ..._core.formats import UNITS
from ..._core.ops import ceil_divide
from ..._core.scaled_tensor import ScaledTensor
from ..._ranks import Ranks
from ..._ranks.wire import as_bytes, as_products_read
from ...nn.autograd.boundary import Sides
from ...nn.autograd.fitting import local_part
from ...nn.autograd.frozen import linear_of_weight
from ...nn.layers.fp8_parameters import hold, weight_of
from ...nn.layers.patching import change_class
from .layouts import require_divisible, spread

_NAME: Final = "octofold.distributed.shard_of"


class Shard(NamedTuple):
    """weight: this rank's rows or columns, with zero codes before them up to where a unit of scales
    begins. zeros: how many. features: how many rows or columns are the rank's."""

    weight: ScaledTensor
    zeros: int
    features: int


def shard_of(weight: ScaledTensor, dim: int, rank: int, size: int) -> Shard:
    """The part that a rank has of a weight [..., out, in]: the one of dimension -2 (rows, out) or
    -1 (columns, in) that torch.chunk() gives it.

    The codes are the weight's. A unit of scales that straddles two ranks is kept on both
    sides. As products begin with a whole unit, the part gets zero codes in front up to where its
    first unit begins: up to 127 rows or columns. Rows: the first `zeros` columns of the product are
    zeros too, and are cut off. Columns: x gets as many zero columns in front.

    Raises InvalidArgumentError where a rank would have nothing.
    """
    if dim not in (-2, -1):
        raise invalid_argument(_NAME, "dim", "-2 (rows) or -1 (columns)", dim)
    first, behind = bounds_of(weight.shape[dim], rank, size)
    return _between(weight, dim, first, behind)


def bounds_of(features: int, rank: int, size: int) -> tuple[int, int]:
    """The begin and end of a rank's part of so many features, as torch.chunk() has it."""
    require_divisible(_NAME, "weight", features, size)
    most = ceil_divide(features, size)
    return rank * most, min((rank + 1) * most, features)


def squares_of(weight: ScaledTensor, dim: int, first: int, behind: int) -> ScaledTensor:
    """The rows (dim -2) or columns (-1) from `first` to `behind`, and zero codes where the units of
    scales that they touch begin before and end behind them."""
    part, zeros, features = _between(weight, dim, first, behind)
    unit = _unit(weight, dim)
    rest = -(zeros + features) % unit
    if rest == 0:
        return part
    codes = _padded(part.data, dim, 0, rest)
    return ScaledTensor(codes, part.scale, part.granularity)


def _between(weight: ScaledTensor, dim: int, first: int, behind: int) -> Shard:
    unit = _unit(weight, dim)
    zeros = first % unit
    codes = as_bytes(weight.data).narrow(dim, first, behind - first).view(weight.data.dtype)
    codes = _padded(codes, dim, zeros, 0)
    scale: Tensor = weight.scale
    units = UNITS[weight.granularity]
    along = units.rows if dim == -2 else units.cols
    if along is not None:
        # The scales of a weight [out, in] are [out] for rows, and [rows, columns] for units.
        axis = dim if units.cols is not None else -1
        begin = first // along
        scale = scale.narrow(axis, begin, ceil_divide(behind, along) - begin)
    scale = as_products_read(scale.contiguous(), weight.granularity)
    return Shard(ScaledTensor(codes, scale, weight.granularity), zeros, behind - first)


def _unit(weight: ScaledTensor, dim: int) -> int:
    """How many rows or columns share a scale, if not all of them do."""
    unit = UNITS[weight.granularity]
    return (unit.rows if dim == -2 else unit.cols) or 1


def _padded(codes: Tensor, dim: int, before: int, behind: int) -> Tensor:
    """With zero codes, all of whose bits are 0."""
    if before == 0 and behind == 0:
        return codes.contiguous()
    zeros = (before, behind) if dim == -1 else (0, 0, before, behind)
    return pad(as_bytes(codes), zeros).view(codes.dtype)


def joined_rows(parts: list[ScaledTensor]) -> ScaledTensor:
    """Parts one below the other, [..., out, in], each of which ends with a unit of scales."""
    codes = torch.cat([as_bytes(part.data) for part in parts], dim=-2).view(parts[0].data.dtype)
    granularity = parts[0].granularity
    unit = UNITS[granularity]
    scale = parts[0].scale
    if unit.rows is not None:
        scale = torch.cat([p.scale for p in parts], dim=-1 if unit.cols is None else -2)
    return ScaledTensor(codes, as_products_read(scale, granularity), granularity)


class Fp8Part(torch.nn.Linear):
    """A linear layer with this rank's part of an FP8 weight, in front of whose codes are zeros: so
    many rows, or columns. They begin where a square does."""

    sides: Sides
    part_of: Callable[[ScaledTensor], Shard]
    """This rank's part of another whole weight."""
    zero_rows = 0
    zero_columns = 0

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else local_part(self.bias)
        if bias is not None and self.zero_rows:
            bias = pad(bias, (self.zero_rows, 0))
        x = pad(input, (self.zero_columns, 0)) if self.zero_columns else input
        y = linear_of_weight(x, self.weight, bias, self.sides)
        return y[..., self.zero_rows :] if self.zero_rows else y


def cut(
    operation: str,
    layer: torch.nn.Linear,
    ranks: Ranks,
    dim: int,
    mesh: DeviceMesh,
    sides: Sides,
    packed: int = 1,
) -> None:
    """Leave a layer this rank's part of its rows (dim -2) or columns (-1), and make it an Fp8Part,
    in place. The weight is no DTensor, so that it is this rank's alone; the bias becomes one."""
    weight = weight_of(layer)
    require_divisible(operation, "weight", weight.shape[dim] // packed, ranks.size, packed > 1)
    part_of = partial(shard_of, dim=dim, rank=ranks.rank, size=ranks.size)
    if packed > 1:
        part_of = partial(_packed_part, operation, ranks=ranks, packed=packed)
    own, zeros, _ = part_of(weight.scaled)
    hold(layer, weight.like(own.data, own.scale))
    spread(operation, layer, "bias", mesh, 0 if dim == -2 else None, 0, packed)
    part: Any = layer
    change_class("parts", part, Fp8Part)
    part.sides, part.part_of = sides, part_of
    if dim == -2:
        part.zero_rows = zeros
    else:
        part.zero_columns = zeros


def _packed_part(operation: str, weight: ScaledTensor, ranks: Ranks, packed: int) -> Shard:
    each = weight.shape[0] // packed
    own = each // ranks.size
    firsts = [i * each + ranks.rank * own for i in range(packed)]
    if weight.granularity == "128x128" and (each % 128 or own % 128):
        expected = f"{packed} · {ranks.size} · a multiple of 128 rows, so that none share scales"
        raise invalid_argument(operation, "weight", expected, weight.shape[0])
    parts = [squares_of(weight, -2, first, first + own) for first in firsts]
    return Shard(joined_rows(parts), 0, own * packed)
