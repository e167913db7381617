"""peft's LoRA layers over layers whose weight is FP8, and what peft's methods may train there."""

import re
from typing import Any, Final

import torch
from peft.tuners import tuners_utils
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ...nn.autograd.fitting import is_fp8
from ...nn.layers.conv1d import is_conv1d
from ...nn.layers.fp8_linear import Fp8Linear
from ...nn.layers.inference import InferenceLinear
from ...nn.layers.weight_only import WeightOnlyLinear

_NAME: Final = "octofold.integrations.peft"
_HEADS: Final = ("score", "classifier")
"""Names of transformers' classification heads, which peft looks for in this order."""
_INITS: Final = (True, False, "gaussian", "orthogonal", "eva")
"""First values of adapters for which peft does not read the weight."""


class Fp8Lora(LoraLinear):  # type: ignore[misc]
    """LoRA over a layer with a frozen weight in FP8, with adapters that can be trained."""

    def __init__(self, base_layer: Module, adapter_name: str, **options: Any) -> None:
        self._before: ScaledTensor | None = None
        super().__init__(base_layer, adapter_name, **options)
        self.fan_in_fan_out = False  # what a Conv1D elsewhere in the model needs

    @property
    def lora_variants(self) -> dict[tuple[str, ...], None]:
        """Variants that peft may use: plain LoRA alone, as DoRA and others read the weight."""
        return {(): None}

    def update_layer(self, adapter_name: str, *arguments: Any, **options: Any) -> None:
        """Add an adapter."""
        require_plain(options["config"])
        super().update_layer(adapter_name, *arguments, **options)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to the weight and cast it again, with scales of the same granularity: one
        rounding to FP8, in which small changes may be lost. The weight is another tensor then.
        Whether the sum is finite is always looked at, so safe_merge changes nothing. Raises
        ValueError, as peft does, and leaves the weight as it was, if it is not."""
        names = tuners_utils.check_adapters_to_merge(self, adapter_names)
        names = [name for name in names if name in self.lora_A]
        if not names:
            return
        base: Fp8Linear = self.get_base_layer()
        before = base.scaled_weight
        with torch.no_grad():
            weight: Tensor = before.dequantize("float32")
            for name in names:
                weight += self.get_delta_weight(name).float()
            if not torch.isfinite(weight).all():
                raise ValueError(f"octofold: merging {names} gives weights that are not finite")
            base.recast(weight)
        if self._before is None:
            self._before = before
        self.merged_adapters.extend(names)

    def unmerge(self) -> None:
        """Give the weight the very bytes back that it had before the first merge()."""
        before = self._before
        if before is not None:
            base: Fp8Linear = self.get_base_layer()
            device = base.weight.device
            data, scale = before.data.to(device), before.scale.to(device)
            base.hold(ScaledTensor(data, scale, before.granularity), base.bias)
            self._before = None
        self.merged_adapters.clear()

    def _get_in_out_features(self, module: Any) -> tuple[int, int]:
        """The layer's features; peft's own method warns of each layer that it does not know."""
        return module.in_features, module.out_features

    def _get_base_layer_device_and_dtype(self, base_layer: Fp8Linear) -> tuple[Any, Any]:
        """The device that adapters go to, and their dtype where the layer says in which its model
        computes: not FP8, as the weight is."""
        return base_layer.weight.device, getattr(base_layer, "compute_dtype", None)


LAYERS: Final[dict[type[Module], type[Module]]] = {
    WeightOnlyLinear: Fp8Lora,
    InferenceLinear: Fp8Lora,
}
_TRAINED: Final = ("modules_to_save", "trainable_token_indices", "target_parameters", "bias")
_KINDS: Final = " and ".join(kind.__name__ for kind in LAYERS)


def require_plain(config: Any) -> None:
    """Requires that a config is of LoRA that does not read the weight itself."""
    init = config.init_lora_weights
    if not any(init is value or (isinstance(init, str) and init == value) for value in _INITS):
        expected = f"one of {', '.join(map(repr, _INITS))}: others read or change the FP8 weight"
        raise invalid_argument(_NAME, "config.init_lora_weights", expected, repr(init))
    fields = type(config).__dataclass_fields__.values()
    variants = [field.name for field in fields if field.metadata.get("is_lora_variant")]
    for name in ("lora_bias", "use_dora", *variants):
        if getattr(config, name, None):
            expected = "False or None over FP8 weights, which take plain LoRA"
            raise invalid_argument(_NAME, f"config.{name}", expected, repr(getattr(config, name)))


def require_trained(model: Module, config: Any) -> None:
    """Requires that a config, of any of peft's methods, asks nothing of FP8 weights and frozen
    biases of a model but adapters over layers of LAYERS: they have no gradient."""
    modules = dict(model.named_modules())
    of = {key: getattr(config, key, None) for key in (*_TRAINED, "token_indices")}
    tokens = of["trainable_token_indices"] or of["token_indices"]
    if tokens and not isinstance(tokens, dict):
        tokens = [name for name, m in modules.items() if isinstance(m, torch.nn.Embedding)]
    asked = of | {"trainable_token_indices": tokens, "token_indices": None}
    asked["bias"] = ["bias"] if of["bias"] not in (None, "none") else None
    for name, module in modules.items():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            is_bias = isinstance(module, Fp8Linear) and key == "bias" and key in module._buffers
            if tensor is None or not (is_bias or is_fp8(tensor) or hasattr(tensor, "scaled")):
                continue
            for field in _TRAINED:
                # peft compares names in this way: it takes what ends so, and whatever is in it.
                endings = "|".join(map(re.escape, asked[field] or ()))
                if endings and re.search(rf"(?:{endings})(?:$|\.)", f"{name}.{key}"):
                    expected = f"nothing without gradients (FP8 takes adapters over {_KINDS})"
                    raise invalid_argument(_NAME, f"config.{field}", expected, f"'{name}.{key}'")


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
