"""Layouts of weights: of more dimensions as the matrices that are cast, and of experts as other
libraries have them; and back."""

from typing import NamedTuple

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


class Stacks(NamedTuple):
    """By default as octofold.nn.Experts has them: [experts, out, in], and in the first layer each
    expert's gates before its ups. Tensors are views where that is possible."""

    transposed: bool = False
    """[experts, in, out]."""
    interleaved: bool = False
    """Gates and ups are neighbours, 2·i and 2·i + 1."""

    def of_files(self, name: str, tensor: Tensor) -> Tensor:
        """A weight [experts, ...] of theirs, or a bias, whose name begins with that of the layer:
        "down_proj" is the second."""
        tensor = self._turned(tensor)
        if self.interleaved and not name.startswith("down_proj"):
            tensor = torch.cat((tensor[:, ::2], tensor[:, 1::2]), 1)
        return tensor

    def to_files(self, name: str, tensor: Tensor) -> Tensor:
        """The way back of of_files()."""
        if self.interleaved and not name.startswith("down_proj"):
            tensor = torch.stack(tensor.chunk(2, 1), 2).flatten(1, 2)
        return self._turned(tensor)

    def _turned(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2) if self.transposed and tensor.dim() == 3 else tensor
