"""Weights of 128x128 blocks that the ranks of a server cut within blocks.

A server's loaders find a rank's scales by the size of blocks, which has to divide the rank's part.
Where a part begins or ends within a block the layer has smaller blocks, which do: the scales of the
checkpoint are repeated for them as they are loaded. Once the layer is loaded they become scales as
products take them, with the values that the whole weight has.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._core.scaled_tensor import ScaledTensor
from .._ranks.wire import as_bytes, as_products_read

WHOLE: Final = (128, 128)


def unit_of(
    input_part: int, output_parts: Sequence[int], inputs: int, outputs: int
) -> tuple[int, int]:
    """The rows and columns of blocks that divide a rank's part of a weight [outputs, inputs];
    WHOLE: none of 128x128 is cut.

    output_parts: of each of the weights that the layer has one below the other.
    """
    cut = output_parts if sum(output_parts) != outputs else output_parts[:-1]
    return math.gcd(128, *cut), 128 if input_part == inputs else math.gcd(128, input_part)


def repeating(loader: Callable[..., Any], unit: tuple[int, int]) -> Callable[..., Any]:
    """A server's loader of scales of 128x128 blocks, which has smaller ones."""
    rows, columns = (128 // each for each in unit)

    def load(parameter: Any, loaded: Tensor, *arguments: Any, **options: Any) -> Any:
        scale = loaded.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return loader(parameter, scale, *arguments, **options)

    return load


def as_products_take(
    codes: Tensor, scale: Tensor, unit: tuple[int, int], rank: int
) -> tuple[ScaledTensor, int]:
    """A rank's weight, and how many zero columns x needs in front: products begin with a whole
    block, and so do the columns of the weight, by codes of zeros.

    rank: whose part of the columns, if these are cut, it is.
    """
    rows, columns = unit
    zeros, granularity = 0, "128x128"
    scale = scale.float()
    if columns < 128:
        zeros = rank * codes.shape[1] % 128
        codes = pad(as_bytes(codes), (zeros, 0)).view(codes.dtype)
        begins = torch.arange(-zeros, codes.shape[1] - zeros, 128, device=scale.device)
        scale = scale.index_select(1, begins.clamp(min=0) // columns)
    if rows < 128:
        granularity = "1x128"
        scale = scale.repeat_interleave(rows, 0)[: codes.shape[0]]
    scale = as_products_read(scale.contiguous(), granularity)
    return ScaledTensor(codes, scale, granularity), zeros
