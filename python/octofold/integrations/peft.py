"""peft's LoRA over Octofold's FP8 layers, whoever asks for it. Importing this module registers it.

octofold.nn.lora_config() makes a config that knows them, for those who make the config
themselves. Diffusers' load_lora_weights() and transformers' add_adapter() make one where nobody can
reach it; so peft's table of tuners has, for LoRA, a subclass of its own LoraModel, by whose hook
before an injection the config learns them. Its other methods have subclasses that refuse what they
would train of FP8 weights without gradients. Nothing is different for models without such layers.
"""

from typing import Any, Final

from .hosts import require

require("peft")

import peft  # noqa: E402
from torch.nn import Module  # noqa: E402

from ..nn.layers.fp8_parameters import held  # noqa: E402
from ..nn.layers.patching import in_front_of  # noqa: E402
from ..nn.layers.peft_layers import LAYERS, require_trained  # noqa: E402

_TUNERS: Final[Any] = peft.PEFT_TYPE_TO_TUNER_MAPPING


class Trained:
    """Before peft's tuners: what would train nothing is refused before the model changes."""

    def _prepare_model(self, peft_config: Any, model: Module) -> None:
        require_trained(model, peft_config)
        super()._prepare_model(peft_config, model)  # type: ignore[misc]


class Fp8LoraModel(Trained, _TUNERS[peft.PeftType.LORA]):  # type: ignore[misc]
    """peft's LoraModel, over FP8 weights too.

    What reads the weight (DoRA …) is refused over them.
    """

    def _pre_injection_hook(self, model: Module, config: Any, adapter_name: str) -> None:
        super()._pre_injection_hook(model, config, adapter_name)
        has_fp8 = any(held(module) is not None for module in model.modules())
        if has_fp8 and not config._custom_modules:  # as octofold.nn.lora_config() has them
            config._register_custom_module(LAYERS)


for _kind, _tuner in list(_TUNERS.items()):
    if hasattr(_tuner, "_prepare_model"):  # the others train no part of the model
        _TUNERS[_kind] = in_front_of(Trained, _tuner)
_TUNERS[peft.PeftType.LORA] = Fp8LoraModel
