"""Layers with FP8 weights, cut for a group of ranks."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module, Parameter
from torch.nn.functional import pad

from ..._core.errors import invalid_argument
from ..._ranks.ranks import Ranks
from ...nn.layers.fp8_weight import Fp8Weight
from .layouts import require_divisible, spread
from .parts import bounds_of, joined_rows, part_of, squares_of


def cut(
    operation: str, layer: Fp8Weight, ranks: Ranks, dim: int, mesh: DeviceMesh, packed: int = 1
) -> None:
    """Leave a layer this rank's part of its rows (dim -2) or columns (-1). Its weight and scales
    stay plain buffers, so that its state is this rank's alone; a bias that is a parameter becomes a
    DTensor."""
    weight, bias = layer.scaled_weight, layer.bias
    features = weight.shape[dim]
    require_divisible(operation, "weight", features // packed, ranks.size, packed > 1)
    if packed > 1:
        _cut_packed(operation, layer, ranks, packed)
        return
    part = part_of(weight, dim, ranks.rank, ranks.size)
    if isinstance(bias, Parameter):
        layer.hold(part.weight, bias)
        spread(operation, layer, "bias", mesh, 0 if dim == -2 else None, 0)
    elif bias is not None and dim == -2:
        first, behind = bounds_of(features, ranks.rank, ranks.size)
        layer.hold(part.weight, bias[first:behind].clone())
    else:
        layer.hold(part.weight, bias)
    if dim == -2:
        layer.zero_rows = part.zeros
    if part.zeros:
        _Zeros(part.zeros).install(layer, dim)


def _cut_packed(operation: str, layer: Fp8Weight, ranks: Ranks, packed: int) -> None:
    weight, bias = layer.scaled_weight, layer.bias
    each = weight.shape[0] // packed
    own = each // ranks.size
    firsts = [i * each + ranks.rank * own for i in range(packed)]
    if weight.granularity == "128x128" and (each % 128 or own % 128):
        expected = f"{packed} · {ranks.size} · a multiple of 128 rows, so that none share scales"
        raise invalid_argument(operation, "weight", expected, weight.shape[0])
    if isinstance(bias, Parameter):
        expected = "None or a buffer, where rows are packed"
        raise invalid_argument(operation, "bias", expected, "a parameter")
    rows = [squares_of(weight, -2, first, first + own) for first in firsts]
    own_bias = None
    if bias is not None:
        own_bias = torch.cat([bias[first : first + own] for first in firsts])
    layer.hold(joined_rows(rows), own_bias)


class _Zeros:
    """Hooks of a layer whose part has zero codes in front."""

    def __init__(self, count: int) -> None:
        self.count = count

    def install(self, module: Module, dim: int) -> None:
        if dim == -2:
            module.register_forward_hook(self.cut_off)
        else:
            module.register_forward_pre_hook(self.put_in_front, with_kwargs=True)

    def put_in_front(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        def with_zeros(x: Any) -> Any:
            return pad(x, (self.count, 0)) if isinstance(x, Tensor) else x

        names = {name: with_zeros(x) for name, x in kwargs.items()}
        return tuple(with_zeros(x) for x in args), names

    def cut_off(self, module: Module, args: Any, y: Tensor) -> Tensor:
        return y[..., self.count :]
