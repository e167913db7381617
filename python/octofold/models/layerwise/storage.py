"""How layers of a model with layerwise casting keep a weight: FP8 codes with scales."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._core.formats import Format, Rule
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.quantize import quantize


@dataclass
class Storage:
    """The properties of its weight that a layer has to know beside codes and scales."""

    granularity: str
    """The granularity of the scales: "128x128" in linear layers, whose products want it; else
    "channel", of the weight as a matrix: a scale for each of the first dimension."""
    native: bool | str
    """The argument `native` of enable_layerwise_casting()."""
    dtype: torch.dtype
    """The dtype of the weight as it was; module.to(dtype) changes it."""
    requires_grad: bool
    """True if the weight required gradients."""
    original: Tensor | None = None
    """The weight as it was, on the CPU, if it is kept."""
    non_blocking: bool = False
    """True if `original` is copied back without blocking."""

    @property
    def scale_name(self) -> str:
        """The scale buffer's name, as checkpoints have it (octofold.nn's Fp8Weight too)."""
        return "weight_scale_inv" if self.granularity == "128x128" else "weight_scale"


def cast_to_storage(weight: Tensor, dtype: str, granularity: str) -> tuple[Tensor, Tensor]:
    """Codes of the weight's shape and strides, and float32 scales: powers of two, so that codes
    times scales are exact in bfloat16 and float32, and a second cast of them changes nothing."""
    weight = weight.detach()
    format = Format(dtype, granularity, rule=Rule.TORCHAO, power_of_two=True)
    cast = quantize(as_matrix(weight), format)
    return of_matrix(cast.data.contiguous(), weight), cast.scale


def from_storage(codes: Tensor, scale: Tensor, granularity: str, dtype: torch.dtype) -> Tensor:
    """The numbers that they stand for."""
    if codes.dim() == 2:
        matrix: Tensor = ScaledTensor(codes, scale, granularity).dequantize(dtype)
        return matrix
    return of_matrix(ScaledTensor(as_matrix(codes), scale, granularity).dequantize(dtype), codes)


def as_matrix(weight: Tensor) -> Tensor:
    """A weight [first, ...] as [first, others], in the order of its memory where that is one of
    torch's memory formats."""
    if is_channels_last(weight):
        weight = weight.movedim(1, -1)
    return weight.reshape(weight.shape[0], -1).contiguous()


def of_matrix(matrix: Tensor, like: Tensor) -> Tensor:
    """Gives the matrix that as_matrix() made of a weight the weight's shape again."""
    if is_channels_last(like):
        first, second, *others = like.shape
        return matrix.reshape(first, *others, second).movedim(-1, 1)
    return matrix.reshape(like.shape)


def is_channels_last(weight: Tensor) -> bool:
    """True if a convolution's weight is laid out so, and not also in the usual way."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(weight.dim())
    return (
        layout is not None
        and not weight.is_contiguous()
        and weight.is_contiguous(memory_format=layout)
    )
