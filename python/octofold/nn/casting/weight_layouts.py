"""Weights of more dimensions as the matrices that are cast, and back."""

import torch
from torch import Tensor


def as_matrix(weight: Tensor) -> Tensor:
    """A weight [first, ...] as [first, others], in the order of its memory where that is one of
    torch's memory formats."""
    if _is_channels_last(weight):
        weight = weight.movedim(1, -1)
    return weight.reshape(weight.shape[0], -1).contiguous()


def of_matrix(matrix: Tensor, like: Tensor) -> Tensor:
    """Gives the matrix that as_matrix() made of a weight the weight's shape again."""
    if _is_channels_last(like):
        first, second, *others = like.shape
        return matrix.reshape(first, *others, second).movedim(-1, 1)
    return matrix.reshape(like.shape)


def _is_channels_last(weight: Tensor) -> bool:
    """True if a convolution's weight is laid out so, and not also in the usual way."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(weight.dim())
    return (
        layout is not None
        and not weight.is_contiguous()
        and weight.is_contiguous(memory_format=layout)
    )
