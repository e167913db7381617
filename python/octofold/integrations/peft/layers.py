"""peft's LoRA layers over FP8 weights of linear layers and of experts, and what peft's methods may
train there."""

import re
from typing import Any, Final

import peft
import torch
from peft.tuners import tuners_utils
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ...nn.autograd.experts_composed import LowRank
from ...nn.autograd.fitting import is_fp8
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.casting.weight_layouts import Stacks
from ...nn.layers.fp8_parameters import held, hold, weight_of

_NAME: Final = "octofold.integrations.peft"
_INITS: Final = (True, False, "gaussian", "orthogonal", "eva")
"""First values of adapters for which peft does not read the weight."""


class _Merging:
    """Before a layer of peft's: its weight is merged with adapters in FP8."""

    parameter_name = "weight"
    get_base_layer: Any
    merged_adapters: list[str]
    _before: tuple[Fp8Weight, ...] = ()  # torch would make a parameter of the weight itself

    def update_layer(self, adapter_name: str, *arguments: Any, **options: Any) -> None:
        """Add an adapter."""
        require_plain(options["config"])
        super().update_layer(adapter_name, *arguments, **options)  # type: ignore[misc]

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to the weight and cast it again, with scales of the same granularity: one
        rounding to FP8, in which small changes may be lost. The weight is another tensor then.
        Whether the sum is finite is always looked at, so safe_merge changes nothing. Raises
        ValueError, as peft does, and leaves the weight as it was, if it is not."""
        names = tuners_utils.check_adapters_to_merge(self, adapter_names)
        names = [name for name in names if name in self.r]  # type: ignore[attr-defined]
        if not names:
            return
        base: Module = self.get_base_layer()
        before = weight_of(base, self.parameter_name)
        with torch.no_grad():
            weight: Tensor = before.dequantize(torch.float32)
            for name in names:
                weight += self.get_delta_weight(name).float()  # type: ignore[attr-defined]
            if not torch.isfinite(weight).all():
                raise ValueError(f"octofold: merging {names} gives weights that are not finite")
            merged: Any = before.clone()
            merged.recast(weight)
            hold(base, merged, self.parameter_name)
        self._before = self._before or (before,)
        self.merged_adapters.extend(names)

    def unmerge(self) -> None:
        """Give the weight the very bytes back that it had before the first merge()."""
        base: Module = self.get_base_layer()
        for before in self._before:
            device = weight_of(base, self.parameter_name).device
            hold(base, before.to(device), self.parameter_name)  # type: ignore[arg-type]
        self._before = ()
        self.merged_adapters.clear()


class Fp8LoraLinear(_Merging, LoraLinear):  # type: ignore[misc]
    """LoRA over a layer with a frozen weight in FP8, with adapters that can be trained. peft knows
    by its name, "Linear", that "all-linear" means it."""

    def __init__(self, base_layer: Module, adapter_name: str, **options: Any) -> None:
        super().__init__(base_layer, adapter_name, **options)
        self.fan_in_fan_out = False  # what a Conv1D elsewhere in the model needs

    @property
    def lora_variants(self) -> dict[tuple[str, ...], None]:
        """Variants that peft may use: plain LoRA alone, as DoRA and others read the weight."""
        return {(): None}


class Fp8LoraExperts(_Merging, ParamWrapper):  # type: ignore[misc]
    """LoRA over the FP8 weights of experts, which are never there in 16 bits: adapters are products
    of groups beside theirs. They have the layout of transformers' experts, whose adapters they
    are."""

    def _get_in_out_features(self, module: Module) -> tuple[int, int]:
        # The weight is [experts, out, in]; peft turns the two where the model has it so itself.
        features: tuple[int, int] = super()._get_in_out_features(module)
        base: Any = self.get_base_layer()
        return features[::-1] if getattr(base, "is_transposed", False) else features

    def terms_of(self, name: str) -> LowRank:
        """An adapter beside the weight, in the layout of this."""
        a, b = self.lora_A[name].weight, self.lora_B[name].weight * self.scaling[name]
        b = b.reshape(b.shape[0], -1, self.num_experts).permute(2, 0, 1)
        rows: Stacks = self.get_base_layer().in_files._replace(transposed=False)
        return a.view(self.num_experts, -1, a.shape[1]), rows.of_files(self.parameter_name, b)

    def get_delta_weight(self, adapter_name: str, *_: Any, **__: Any) -> Tensor:
        """An adapter's change of the weight, in the weight's layout."""
        a, b = self.terms_of(adapter_name)
        return torch.matmul(b, a)

    def forward(self, x: Tensor, *arguments: Any, adapter_names: Any = None, **options: Any) -> Any:
        """The forward of the experts, with adapters beside their weights."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or not names or adapter_names is not None:
            return super().forward(x, *arguments, adapter_names=adapter_names, **options)
        a, b = zip(*map(self.terms_of, names), strict=True)
        terms = {self.parameter_name: (torch.cat(a, 1), torch.cat(b, 2))}
        adapters = (options.pop("adapters", None) or {}) | terms
        return self.base_layer(x, *arguments, adapters=adapters, **options)


Fp8LoraExperts.__name__ = ParamWrapper.__name__  # by which peft knows that they may be nested


def _adapter_over(
    target: Any, adapter_name: str, parameter_name: str | None = None, **options: Any
) -> Module | None:
    """The layer over an FP8 weight; None: peft's own."""
    base = target.get_base_layer() if isinstance(target, tuners_utils.BaseTunerLayer) else target
    if parameter_name is None:
        is_ours = isinstance(base, torch.nn.Linear) and held(base) is not None
        return Fp8LoraLinear(target, adapter_name, **options) if is_ours else None
    if held(base, parameter_name) is not None:
        return Fp8LoraExperts(target, adapter_name, parameter_name=parameter_name, **options)
    if getattr(base, "in_files", Stacks()) != Stacks():
        expected = "weights in FP8, or as the model has them: its adapters do not fit others"
        raise invalid_argument(_NAME, "config.target_parameters", expected, parameter_name)
    return None


LAYERS: Final[dict[type[Module], Any]] = {Module: _adapter_over}
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
    adapters over linear layers, and LoRA's over experts: they have no gradient."""
    modules = dict(model.named_modules())
    of = {key: getattr(config, key, None) for key in (*_TRAINED, "token_indices")}
    tokens = of["trainable_token_indices"] or of["token_indices"]
    if tokens and not isinstance(tokens, dict):
        tokens = [name for name, m in modules.items() if isinstance(m, torch.nn.Embedding)]
    asked = of | {"trainable_token_indices": tokens, "token_indices": None}
    is_lora = config.peft_type == peft.PeftType.LORA
    layers = {n.rpartition(".")[2] for n, m in modules.items() if isinstance(m, torch.nn.Linear)}
    for name, module in modules.items():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not (is_fp8(tensor) or isinstance(tensor, Fp8Weight)):
                continue
            adapted = is_lora and hasattr(module, "in_files") and tensor.dim() == 3
            for field in _TRAINED[: 2 if adapted else 3]:
                # peft compares names in this way: it takes what ends so, and whatever is in it.
                endings = "|".join(map(re.escape, asked[field] or ()))
                if endings and re.search(rf"(?:{endings})(?:$|\.)", f"{name}.{key}"):
                    expected = "nothing without gradients (FP8 takes adapters over linear layers: "
                    expected += f"{sorted(layers - {'lm_head'})}, and target_parameters of experts)"
                    raise invalid_argument(_NAME, f"config.{field}", expected, f"'{name}.{key}'")
