"""The node that loads diffusion models whose FP8 weights have no scales.

ComfyUI makes 16 bits of such a weight before a layer sees it. With a scale of 1 and a mark at each
layer they are what ComfyUI's own FP8 checkpoints are, whose weights stay FP8 up to the product.
"""

import importlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

_FORMATS: Final = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
"""ComfyUI's names."""
_MARK: Final = "comfy_quant"


def marked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict() of a diffusion model in which each FP8 matrix that is a layer's weight has a
    scale and ComfyUI's mark. One that has scales already, or no such weight, is as it was."""
    new = dict(state)
    ends = (f".{_MARK}", "scaled_fp8", ".scale_weight", ".weight_scale")
    if any(name.endswith(ends) for name in state):
        return new
    for name, tensor in state.items():
        layer, _, last = name.rpartition(".")
        if last == "weight" and tensor.dim() == 2 and tensor.dtype in _FORMATS:
            text = json.dumps({"format": _FORMATS[tensor.dtype]}).encode()
            new[f"{layer}.weight_scale"] = torch.ones((), dtype=torch.float32)
            new[f"{layer}.{_MARK}"] = torch.tensor(list(text), dtype=torch.uint8)
    return new


def load_diffusion_model(path: str) -> Any:
    """ComfyUI's, of a file whose FP8 weights stay FP8 up to the product. Returns its model."""
    sd: Any = importlib.import_module("comfy.sd")
    utils: Any = importlib.import_module("comfy.utils")
    state, metadata = utils.load_torch_file(path, return_metadata=True)
    model = sd.load_diffusion_model_state_dict(marked(state), metadata=metadata)
    if model is None:
        raise RuntimeError(f"ComfyUI does not know the diffusion model in {path}")
    model.cached_patcher_init = (load_diffusion_model, (path,))  # for a copy on another GPU
    return model


class LoadDiffusionModel:
    """ComfyUI's loader of diffusion models, for FP8 weights with scales and without."""

    DESCRIPTION: ClassVar = "Loads a diffusion model whose FP8 weights stay FP8 up to the product."
    CATEGORY: ClassVar = "model/loaders"
    FUNCTION: ClassVar = "load"
    RETURN_TYPES: ClassVar = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 (ComfyUI's name)
        paths: Any = importlib.import_module("folder_paths")
        return {"required": {"unet_name": (paths.get_filename_list("diffusion_models"),)}}

    def load(self, unet_name: str) -> tuple[Any]:
        paths: Any = importlib.import_module("folder_paths")
        return (load_diffusion_model(paths.get_full_path_or_raise("diffusion_models", unet_name)),)


NODE_CLASS_MAPPINGS: Final[dict[str, type]] = {"OctofoldLoadDiffusionModel": LoadDiffusionModel}
NODE_DISPLAY_NAME_MAPPINGS: Final = {
    "OctofoldLoadDiffusionModel": "Load Diffusion Model (FP8, Octofold)"
}
