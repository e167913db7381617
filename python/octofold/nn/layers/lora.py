"""peft's LoRA over layers whose weight is FP8."""

import copy
import importlib
from typing import Any, Final

import torch
from torch.nn import Module

from ..._core.errors import invalid_argument, require_type
from .conv1d import is_conv1d
from .fp8_linear import Fp8Linear

_NAME: Final = "octofold.nn.lora_config"
_HEADS: Final = ("score", "classifier")
"""Names of transformers' classification heads, which peft looks for in this order."""


def lora_config(model: Module, config: Any) -> Any:
    """Make a peft.LoraConfig with which peft also puts LoRA over WeightOnlyLinear and
    InferenceLinear.

    model: the model that goes to get_peft_model() or PeftModel.from_pretrained() with the config;
        or a PeftModel that gets one more adapter. It stays as it is.
    config: a peft.LoraConfig of plain LoRA. Variants (DoRA …), lora_bias and first values that are
        computed from the weight (PiSSA …) are refused, because they read FP8 codes as numbers; and
        what would train FP8 weights themselves or their frozen biases (modules_to_save, bias,
        trainable_token_indices, target_parameters), as they get no gradient. It stays as it is.

    target_modules="all-linear" becomes the names of all linear layers, FP8 ones too, except the
    output layer. Nothing in peft is patched: the config alone says which classes are used. Files do
    not keep that, so the config of a saved adapter (LoraConfig.from_pretrained()) goes through here
    again.

    Adapters have torch's default dtype.
    merge_adapter() and merge_and_unload() add to the weight and cast it again, with one rounding to
    FP8; unmerge_adapter() gives the weight its bytes back. Merge before a CUDA graph is captured.

    Raises InvalidArgumentError, which names the argument.
    """
    require_type(_NAME, "model", model, Module, "a torch.nn.Module")
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
    targets = config.target_modules
    if isinstance(targets, str) and targets.lower() == "all-linear":
        config.target_modules = linear_names(model, config.task_type == "SEQ_CLS")
    config._register_custom_module(layers.LAYERS)
    return config


def linear_names(model: Any, classifies: bool) -> set[str]:
    """The names that "all-linear" stands for, as peft has it: without what gives the output."""
    head = None
    if callable(getattr(model, "get_output_embeddings", None)):
        head = model.get_output_embeddings()
        if head is None and classifies:
            heads = (getattr(model, name, None) for name in _HEADS)
            head = next((layer for layer in heads if layer is not None), None)
    names: set[str] = set()
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside) and inside:
            continue
        wrapped = callable(getattr(module, "get_base_layer", None))
        layer = module.get_base_layer() if wrapped else module
        if wrapped:
            inside += (f"{name}.",)
        is_linear = isinstance(layer, (torch.nn.Linear, Fp8Linear)) or is_conv1d(layer)
        if is_linear and layer is not head:
            names.add(name)
    return names
