"""How files of models have the stacks of experts, where that is another way than that of
octofold.nn.Experts."""

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

    def first_of_files(self, tensor: Tensor) -> Tensor:
        """A first layer [experts, 2·inner, hidden], or its bias [experts, 2·inner], of theirs."""
        if self.transposed and tensor.dim() == 3:
            tensor = tensor.transpose(1, 2)
        return torch.cat((tensor[:, ::2], tensor[:, 1::2]), 1) if self.interleaved else tensor

    def second_of_files(self, tensor: Tensor) -> Tensor:
        """A second layer [experts, hidden, inner]; its bias is the same either way."""
        return tensor.transpose(1, 2) if self.transposed and tensor.dim() == 3 else tensor

    def first_to_files(self, tensor: Tensor) -> Tensor:
        """The way back of first_of_files()."""
        if self.interleaved:
            tensor = torch.stack(tensor.chunk(2, 1), 2).flatten(1, 2)
        return tensor.transpose(1, 2) if self.transposed and tensor.dim() == 3 else tensor

    def second_to_files(self, tensor: Tensor) -> Tensor:
        """The way back of second_of_files()."""
        return self.second_of_files(tensor)
