"""Layers whose forward kernelize() puts into a model's own layers, whose parameters they use."""

import torch
from octofold import ScaledTensor, linear
from octofold.nn.autograd.frozen import frozen_linear
from torch import Tensor

__all__ = ["Fp8Linear", "Linear"]


class Linear(torch.nn.Module):
    """octofold.linear() of a layer like torch.nn.Linear: all products in FP8, forward and backward,
    of a weight [out, in] in 16 or 32 bits that each forward casts."""

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = linear(input, self.weight, self.bias)
        return y


class Fp8Linear(torch.nn.Module):
    """The forward of a layer that holds a weight [out, in] in FP8 and `weight_scale_inv`, float32
    scales of 128x128, as checkpoints of DeepSeek-V3 have them. Gradients by input and bias."""

    has_backward = True
    can_torch_compile = True

    weight: Tensor
    weight_scale_inv: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        weight = ScaledTensor(self.weight.detach(), self.weight_scale_inv, "128x128")
        return frozen_linear(input, weight, self.bias)
