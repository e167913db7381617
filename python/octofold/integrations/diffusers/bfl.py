"""Checkpoints of the kind fp8r: codes [N, K] in e4m3, and a float32 scale for each row."""

from typing import Any, Final

import torch
from diffusers.quantizers.bfl.utils import BFLFP8RLinear, BFLNVFP4Linear, BFLQuantizedParameter
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ...nn.conversion.fp8_layers import frozen_weight, words_of
from ...nn.conversion.linear import replaced
from ...nn.conversion.picking import Conversion
from ...nn.layers.fp8_parameters import with_weight
from ...nn.recipes.choice import require_compute

_NAME: Final = "octofold.integrations.diffusers.take_fp8r"
_KIND: Final = "fp8r"
_SCALE: Final = "_scale"


@torch.no_grad()
def take_fp8r(model: Module, compute: str = "auto") -> Conversion:
    """Have Octofold's layers compute what Diffusers has loaded in the format fp8r.

    model: loaded by BFLQuantizationConfig; changed in place. Its layers of this format have codes
        in e4m3 [N, K] and a float32 scale for each row, which is Octofold's "channel": the new
        layers have the same memory. Where "native" they compute as the recipe "rowwise".
    compute: as of OctofoldConfig.

    Layers with hooks of accelerate, and those of the format nvfp4, are left alone. Convert before
    adapters are added.
    Returns a report that says what became of each layer.
    Raises InvalidArgumentError, for a model without such layers too.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    require_compute(_NAME, compute)
    new: dict[int, Module] = {}
    converted: dict[str, str] = {}
    left_alone: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, BFLNVFP4Linear):
            left_alone[name] = "its codes are nvfp4"
        elif isinstance(module, BFLFP8RLinear):
            if "forward" in module.__dict__:
                left_alone[name] = "its forward was replaced (as by accelerate)"
                continue
            new[id(module)] = layer = _layer_of(module, compute)
            converted[name] = words_of(layer.weight)
    if not new:
        got = f"{type(model).__qualname__} without"
        raise invalid_argument(_NAME, "model", "layers of the format fp8r", got)
    return Conversion(replaced(model, new), converted, left_alone)


def _layer_of(linear: Any, compute: str) -> Any:
    weight = ScaledTensor(linear.weight.detach(), linear.weight_scale, "channel")
    return with_weight(linear, frozen_weight(weight, linear.compute_dtype, compute))


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
