"""Layouts that other libraries have for the weights of experts."""

from typing import NamedTuple

import torch
from torch import Tensor


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
