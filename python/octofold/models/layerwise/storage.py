"""How layers of a model with layerwise casting keep a weight, FP8 codes with scales, and load a
state_dict()."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core.formats import Format, Rule
from ..._core.library import note
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import NAMES
from ..._ops.quantize import quantize
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.weight_tensors import is_wide


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


def load_weight(
    own: Tensor, storage: Storage, state: dict[str, Any], prefix: str, error_messages: list[str]
) -> dict[str, Any]:
    """The state with the weight of a layer as codes and scales. A weight in high precision is cast
    as it was when casting was enabled. A weight in FP8 needs the dtype of the layer's `own` weight,
    and its scales."""
    key, scale_key = f"{prefix}weight", f"{prefix}{storage.scale_name}"
    weight, scale = state.get(key), state.get(scale_key)
    if not isinstance(weight, Tensor):
        return state
    if storage.original is not None:
        note(f"layerwise casting: {key} is loaded: its original is kept no longer")
        storage.original = None
    if is_fp8(weight):
        if weight.dtype != own.dtype or scale is None:
            error_messages.append(
                f"layerwise casting: '{key}': expected {own.dtype} with '{scale_key}', or a weight "
                f"in high precision, got {weight.dtype}{'' if scale is not None else ' without it'}"
            )
            return {name: value for name, value in state.items() if name not in (key, scale_key)}
        return state
    if not is_wide(weight) or weight.shape != own.shape:
        return state
    codes, scale = cast_to_storage(weight.to(own.device), NAMES[own.dtype], storage.granularity)
    return {**state, key: codes, scale_key: scale}
