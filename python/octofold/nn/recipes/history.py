"""Delayed scaling: a tensor's scale from the largest magnitudes of the steps before.

As Transformer Engine's DelayedScaling does it (its documentation; Micikevicius et al., FP8 Formats
for Deep Learning, 2022): scale = largest magnitude in the history · 2^margin / largest number of
the format. All of it is work for the device: nothing is read on the host, so a CUDA graph can
capture it.
"""

import math

import torch
from torch import Tensor

from ..._core.recipe import Delayed
from ..._core.torch import DTYPES

INPUT, WEIGHT, GRADIENT = 0, 1, 2
"""Rows of a layer's histories."""


def new_history(delayed: Delayed, device: torch.device | str | None = None) -> Tensor:
    """The histories of a layer's three tensors, none seen yet: zeros [3, history], float32."""
    return torch.zeros(3, delayed.history, device=device)


def delayed_scale(
    x: Tensor, history: Tensor, dtype: str, delayed: Delayed, remember: bool = True
) -> Tensor:
    """The scale [1] for x. With `remember` x's largest magnitude goes into its history [history],
    newest first.

    As long as the history holds nothing but zeros the scale is that of x itself, and 1 where x is
    all zeros too. A NaN or an infinity in x makes the scale NaN, so that all that is computed with
    it is NaN: saturating would hide it. The history takes it as 0, and the next step has a scale.
    """
    x = x.detach()
    if x.numel() == 0:
        amax = history.new_zeros(1)
    else:
        amax = torch.linalg.vector_norm(x, math.inf).float().reshape(1)
    finite = amax.nan_to_num(nan=0.0, posinf=0.0)
    seen = history.amax(dim=0, keepdim=True)
    largest = torch.finfo(DTYPES[dtype]).max
    basis = torch.where(seen > 0, seen, finite)
    basis = torch.where(basis > 0, basis, largest)
    if remember:
        history.copy_(torch.cat((finite, history[:-1])))
    return basis * (2.0**delayed.margin / largest) + amax * 0.0
