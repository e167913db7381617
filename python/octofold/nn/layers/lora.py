"""peft's LoRA over layers whose weight is FP8."""

import copy
import importlib
from typing import Any, Final

from torch.nn import Module

from ..._core.errors import invalid_argument

_NAME: Final = "octofold.nn.lora_config"


def lora_config(model: Module, config: Any) -> Any:
    """Make a peft.LoraConfig with which peft's LoRA over FP8 weights merges, and unmerges, by
    casting, and does not read them for anything else.

    model: the model that goes to get_peft_model() or PeftModel.from_pretrained() with the config;
        or a PeftModel that gets one more adapter. It stays as it is.
    config: a peft.LoraConfig of plain LoRA. Variants (DoRA …), lora_bias and first values that are
        computed from the weight (PiSSA …) are refused, because they read FP8 codes as numbers; and
        what would train FP8 weights themselves (modules_to_save, trainable_token_indices,
        target_parameters), as they get no gradient. It stays as it is.

    Nothing in peft is patched: the config alone says which classes are used. Files do not keep
    that, so the config of a saved adapter (LoraConfig.from_pretrained()) goes through here again.

    merge_adapter() and merge_and_unload() add to the weight and cast it again, with one rounding to
    FP8; unmerge_adapter() gives the weight its bytes back. Merge before a CUDA graph is captured.

    Raises InvalidArgumentError, which names the argument.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    peft: Any = importlib.import_module("peft")
    if not isinstance(config, peft.LoraConfig):
        expected = "a peft.LoraConfig: peft's other methods do not know FP8 weights"
        raise invalid_argument(_NAME, "config", expected, type(config).__qualname__)
    layers: Any = importlib.import_module(".peft_layers", __package__)
    layers.require_plain(config)
    if isinstance(model, peft.PeftModel):
        model = model.get_base_model()
    layers.require_trained(model, config)
    config = copy.copy(config)
    config._custom_modules = dict(config._custom_modules or {})
    config._register_custom_module(layers.LAYERS)
    return config
