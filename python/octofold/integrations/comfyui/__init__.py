"""ComfyUI: linear layers of FP8 checkpoints by Octofold's products.

ComfyUI keeps an FP8 weight as a tensor of comfy-kitchen, which looks the code for an operation up
in a public table. register() enters Octofold there, for the products that comfy-kitchen itself
would dequantize the weight for, and tells ComfyUI to hand inputs over as they are. Loading,
offloading and LoRA stay ComfyUI's: a patched weight comes back as an FP8 tensor, or in 16 bits.

ComfyUI finds the folder `custom_node` in its custom_nodes:

    ln -s "$(python -m octofold.integrations.comfyui)" custom_nodes/octofold

docs/integrations/comfyui.md has the rest. Nothing here imports ComfyUI or comfy-kitchen before
register() is called.
"""

import logging
from pathlib import Path
from typing import Any, Final

import torch

from ..._core.frameworks import imported
from ...nn.recipes.kernels import has_native
from ..hosts import plug_in

__all__ = ["custom_node_folder", "register", "unregister"]

_LOG: Final = logging.getLogger("octofold.comfyui")
_FORMATS: Final = ("float8_e4m3fn", "float8_e5m2")
"""ComfyUI's names of the formats that comfy-kitchen's FP8 layout is for."""
_ABSENT: Final = object()

_replaced: dict[Any, Any] = {}
"""By operation, comfy-kitchen's own entries, while Octofold's are in their place."""
_settings: dict[str, Any] = {}
"""By format, ComfyUI's own setting, while Octofold's is in its place."""


def register() -> bool:
    """Compute linear layers with FP8 weights by Octofold. What was done, or why nothing was, is
    logged, because an error would be ComfyUI's. A second call does nothing.

    Returns whether Octofold is in the tables.
    """
    return plug_in("comfyui", _enter, _LOG.info, _LOG.warning)


def unregister() -> None:
    """Put back what register() replaced."""
    if not _replaced:
        return
    from comfy_kitchen.tensor import TensorCoreFP8Layout, register_layout_op

    for operation, handler in _replaced.items():
        register_layout_op(operation, TensorCoreFP8Layout)(handler)
    _replaced.clear()
    algorithms = _algorithms()
    for name, setting in _settings.items():
        if setting is _ABSENT:
            algorithms[name].pop("quantize_input", None)
        else:
            algorithms[name]["quantize_input"] = setting
    _settings.clear()


def custom_node_folder() -> Path:
    """The folder that ComfyUI's custom_nodes is to have a link to, or a copy of."""
    return Path(__file__).with_name("custom_node")


def _enter() -> str:
    from comfy_kitchen.tensor import TensorCoreFP8Layout, register_layout_op
    from comfy_kitchen.tensor.base import _LAYOUT_DISPATCH_TABLE

    from .products import handlers

    if not _replaced:
        for operation, handler in handlers(lambda operation: _replaced[operation]).items():
            _replaced[operation] = _LAYOUT_DISPATCH_TABLE[operation][TensorCoreFP8Layout]
            register_layout_op(operation, TensorCoreFP8Layout)(handler)
        # A layer of such a format gives its input to the product as it is (ComfyUI has it so for
        # INT8, whose product casts the input too), and not cast by one scale for all of it.
        for name, algorithm in _algorithms().items():
            if name in _FORMATS:
                _settings[name] = algorithm.get("quantize_input", _ABSENT)
                algorithm["quantize_input"] = False
    return f"linear layers with FP8 weights are computed by octofold: {_how()}"


def _algorithms() -> Any:
    """ComfyUI's table of formats; empty where comfy-kitchen is used without ComfyUI."""
    return getattr(imported("comfy.quant_ops"), "QUANT_ALGOS", {})


def _how() -> str:
    """Says what is done on the GPU at hand, and what is missing for it."""
    management = imported("comfy.model_management")
    if management is not None and not management.supports_fp8_compute():
        return (
            "none so far, because ComfyUI gives layers FP8 weights only where it takes the GPU to "
            "have FP8 units: start it with --supports-fp8-compute"
        )
    if not torch.cuda.is_available():
        return "on the CPU"
    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    if has_native(device):
        return f"{name} multiplies FP8 with FP8, and up to 16 tokens with weights alone in FP8"
    return f"{name} has no FP8 products here, weights alone are in FP8"
