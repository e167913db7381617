"""Checkpoints of the kind fp8r: codes [N, K] in e4m3, and a float32 scale for each row."""

from typing import Any, Final

import torch
from diffusers.quantizers.bfl.utils import BFLQuantizedParameter
from torch import Tensor

_KIND: Final = "fp8r"
_SCALE: Final = "_scale"


def bundled(state: dict[str, Any]) -> dict[str, Any]:
    """A state of a file of the kind fp8r with each weight [N, K] and its scales [N] as one, that
    Diffusers can rename, split and join; any other as it is."""
    for name in [key for key in state if key.endswith(".weight_scale")]:
        weight, scale = state.get(name.removesuffix(_SCALE)), state[name]
        if getattr(weight, "dtype", None) == torch.float8_e4m3fn and scale.dim() == 1:
            key = name.removesuffix(_SCALE)
            state[key] = BFLQuantizedParameter(weight, _KIND, state.pop(name))
    return state


def is_bundle(value: object) -> bool:
    """True if bundled() made it."""
    return isinstance(value, BFLQuantizedParameter) and value.quant_type == _KIND


def codes_and_scale(bundle: Any) -> tuple[Tensor, Tensor]:
    """The codes and the scale in a bundle."""
    return bundle.as_tensor(), bundle.weight_scale
