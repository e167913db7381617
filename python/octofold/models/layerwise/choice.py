"""How a linear layer with an FP8 weight is computed: by the GPU and the number of tokens."""

from collections.abc import Sequence
from typing import Final

import torch

from ..._core.batch_invariance import is_batch_invariant
from ..._core.ops import row_count
from ..._layer_ways import CAST, NATIVE, WEIGHT_ONLY
from ...nn.recipes.choice import FEW_TOKENS, MOST_TOKENS
from ...nn.recipes.kernels import has_native, has_weight_only, on_gpu

CAST_COST: Final = 550
"""How many multiplications by FP8 units save what it takes to cast one number (3 bytes read and
written, against products of twice the rate): 577 by the rates of an H200, 495 by those of an RTX
4090. Not measured."""


def linear_way(
    shape: Sequence[int],
    out_features: int,
    native: bool | str,
    device: torch.device,
    dtype: torch.dtype,
) -> str:
    """One of octofold._layer_ways, of x [..., in] of this shape that is computed with in `dtype`.
    "cast" is a copy of the weight in this dtype, for torch's product, whose rows are not apart.
    native: as enable_layerwise_casting() takes it. True on a GPU that has no native products, as a
    layer may be moved to, is as False."""
    if native is True and has_native(device):
        return NATIVE
    if not on_gpu(device):
        return CAST
    tokens = row_count(shape)
    weight_only = has_weight_only(device, dtype)
    if is_batch_invariant():  # whatever their number
        if native == "auto" and has_native(device):
            return NATIVE
        return WEIGHT_ONLY if weight_only else CAST
    if weight_only and tokens <= FEW_TOKENS:
        return WEIGHT_ONLY
    if native == "auto" and _gains(tokens, shape[-1], out_features) and has_native(device):
        return NATIVE
    return WEIGHT_ONLY if weight_only and tokens <= MOST_TOKENS else CAST


def _gains(tokens: int, in_features: int, out_features: int) -> bool:
    """True if casting x takes less time than a copy of the weight and what FP8 units save. Each is
    proportional to in_features, but rows that are no multiple of 16 bytes reach the tensor cores by
    threads that copy, not by TMA."""
    return in_features % 16 == 0 and (tokens + CAST_COST) * out_features >= CAST_COST * tokens
