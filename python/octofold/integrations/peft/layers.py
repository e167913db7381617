"""peft's LoRA layers over layers whose weight is FP8, and what peft's methods may train there."""

import re
from typing import Any, Final

import torch
from peft.tuners import tuners_utils
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.layers.fp8_parameters import held, hold, weight_of

_NAME: Final = "octofold.integrations.peft"
_INITS: Final = (True, False, "gaussian", "orthogonal", "eva")
"""First values of adapters for which peft does not read the weight."""


class Fp8LoraLinear(LoraLinear):  # type: ignore[misc]
    """LoRA over a layer with a frozen weight in FP8, with adapters that can be trained. peft knows
    by its name, "Linear", that "all-linear" means it."""

    def __init__(self, base_layer: Module, adapter_name: str, **options: Any) -> None:
        self._before: Fp8Weight | None = None
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
        base: Module = self.get_base_layer()
        before = weight_of(base)
        with torch.no_grad():
            weight: Tensor = before.dequantize(torch.float32)
            for name in names:
                weight += self.get_delta_weight(name).float()
            if not torch.isfinite(weight).all():
                raise ValueError(f"octofold: merging {names} gives weights that are not finite")
            merged: Any = before.clone()
            merged.recast(weight)
            hold(base, merged)
        if self._before is None:
            self._before = before
        self.merged_adapters.extend(names)

    def unmerge(self) -> None:
        """Give the weight the very bytes back that it had before the first merge()."""
        before = self._before
        if before is not None:
            base: Any = self.get_base_layer()
            hold(base, before.to(base.weight.device))  # type: ignore[arg-type]
            self._before = None
        self.merged_adapters.clear()


def _fp8_lora(target: Module, adapter_name: str, **options: Any) -> Module | None:
    """Fp8LoraLinear over a linear layer with an FP8 weight; None: peft's own layer."""
    wrapped = isinstance(target, tuners_utils.BaseTunerLayer)
    base = target.get_base_layer() if wrapped else target  # type: ignore[operator]
    return None if held(base) is None else Fp8LoraLinear(target, adapter_name, **options)


LAYERS: Final[dict[type[Module], Any]] = {torch.nn.Linear: _fp8_lora}
"""For a config's _register_custom_module(), which takes classes, and what is called as they are."""

_TRAINED: Final = ("modules_to_save", "trainable_token_indices", "target_parameters")


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
    """Requires that a config, of any of peft's methods, asks nothing of FP8 weights of a model but
    adapters over linear layers: they have no gradient."""
    modules = dict(model.named_modules())
    of = {key: getattr(config, key, None) for key in (*_TRAINED, "token_indices")}
    tokens = of["trainable_token_indices"] or of["token_indices"]
    if tokens and not isinstance(tokens, dict):
        tokens = [name for name, m in modules.items() if isinstance(m, torch.nn.Embedding)]
    asked = of | {"trainable_token_indices": tokens, "token_indices": None}
    layers = {n.rpartition(".")[2] for n, m in modules.items() if isinstance(m, torch.nn.Linear)}
    for name, module in modules.items():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not (is_fp8(tensor) or isinstance(tensor, Fp8Weight)):
                continue
            for field in _TRAINED:
                # peft compares names in this way: it takes what ends so, and whatever is in it.
                endings = "|".join(map(re.escape, asked[field] or ()))
                if endings and re.search(rf"(?:{endings})(?:$|\.)", f"{name}.{key}"):
                    expected = "nothing without gradients (FP8 takes adapters over linear layers: "
                    expected += f"{sorted(layers - {'lm_head'})}; 'all-linear' means experts too)"
                    raise invalid_argument(_NAME, f"config.{field}", expected, f"'{name}.{key}'")
