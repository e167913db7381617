"""Experts of which each rank has a part of each one (expert-tensor parallelism)."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._ranks import Ranks, ranks_of
from ...nn.autograd.activated import is_gated
from ...nn.autograd.boundary import Sides
from ...nn.autograd.fitting import is_dtensor
from ...nn.layers.experts import Experts
from ...nn.layers.fp8_parameters import held, hold, weight_of
from .fp8_shards import joined_rows, squares_of
from .layouts import require_divisible, spread
from .styles import BlockStyle, name_of


class ExpertTensorParallel(BlockStyle):
    """An octofold.nn.Experts of which each rank has an equal part of each expert's `inner`
    features: the rows of gate and of up, the columns of down.

    input_layouts: of x, topk_ids and topk_weights: Replicate() (None), or Shard(dim) of the
        dimensions of tokens: they are gathered, x in its own dtype, as rows are sorted by expert
        before they are cast.
    output_layouts: of the result, Replicate() (None) or Shard(dim).
    use_local_output: as of ColumnParallel.
    reduce_dtype: in which results, and gradients by x, are added up: None (their own) or
        torch.float32. What is added has been rounded to their dtype on each rank.

    Weights become DTensors, whose parts of gate and up are those of torch's _StridedShard. FP8
    weights are this rank's alone; with 128x128 scales that straddle two ranks each keeps the
    squares that it touches, with zeros for what is not its own.
    Raises InvalidArgumentError, which names the argument.
    """

    def _apply(self, module: Module, device_mesh: DeviceMesh) -> Module:
        if not isinstance(module, Experts):
            raise self.refusal(module, "an octofold.nn.Experts")
        if module.main_grad:
            raise invalid_argument(self.name, "main_grad", "False, as weights are DTensors", True)
        ranks = ranks_of(self.name, "device_mesh", device_mesh)
        operation = name_of(module)
        first, second = module.weight_names
        experts, hidden, inner = getattr(module, second).shape
        if is_dtensor(getattr(module, first)) or is_dtensor(getattr(module, second)):
            expected = "whole weights: tensor parallelism comes before fully_shard()"
            raise invalid_argument(self.name, "module", expected, "DTensors")
        require_divisible(operation, second, inner, ranks.size, equally=True)
        packed = 2 if is_gated(module.activation) else 1
        options: tuple[Any, ...] = device_mesh, self.src_data_rank
        if held(module, first) is not None:
            _cut(module, ranks, packed)
        else:
            spread(operation, module, first, options[0], 1, options[1], packed)
            spread(operation, module, second, options[0], 2, options[1])
            spread(operation, module, f"{first}_bias", options[0], 1, options[1], packed)
        spread(operation, module, f"{second}_bias", options[0], None, options[1])
        module.sides = Sides(
            self.boundary(operation, ranks, self.input_layouts),
            self.boundary(operation, ranks, self.output_layouts),
        )
        layouts = self.input_layouts, self.output_layouts
        facts = experts, hidden, inner, module.recipe
        self.install_hooks(module, device_mesh, ranks, *layouts, hidden, *facts)
        return module


def _cut(module: Experts, ranks: Ranks, packed: int) -> None:
    """Leave experts with FP8 weights this rank's part of them."""
    first, second = module.weight_names
    weights = [weight_of(module, name) for name in (first, second)]
    of_first, of_second = (weight.scaled for weight in weights)
    inner = of_second.shape[-1]
    own = inner // ranks.size
    begin = ranks.rank * own
    if packed > 1 and of_first.granularity == "128x128" and inner % 128:
        expected = "a multiple of 128 inner features, so that gate and up have squares of their own"
        raise invalid_argument(name_of(module), first, expected, inner)
    starts = [i * inner + begin for i in range(packed)]
    rows = [squares_of(of_first, -2, start, start + own) for start in starts]
    columns = squares_of(of_second, -1, begin, begin + own)
    bias = getattr(module, f"{first}_bias")
    if bias is not None:
        zeros = begin % 128 if of_first.granularity == "128x128" else 0
        count = rows[0].shape[-2]
        parts = [_placed(bias[:, start : start + own], zeros, count) for start in starts]
        # No parameter any more: with zeros for rows that are not its own it is no part of one.
        module._parameters.pop(f"{first}_bias")
        module.register_buffer(f"{first}_bias", torch.cat(parts, dim=1))
    parts_of_weights = zip((first, second), weights, (joined_rows(rows), columns), strict=True)
    for name, weight, part in parts_of_weights:
        hold(module, weight.like(part.data, part.scale), name)


def _placed(bias: Tensor, zeros: int, rows: int) -> Tensor:
    behind = rows - zeros - bias.shape[1]
    return torch.nn.functional.pad(bias.detach(), (zeros, behind))
