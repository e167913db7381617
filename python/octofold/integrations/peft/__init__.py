"""peft's LoRA over Octofold's FP8 layers, whoever asks for it. Importing this module registers it.

peft's table of tuners has, for LoRA, a subclass of its own LoraModel, which before an injection
teaches a config the weights: the user's, or one that Diffusers' load_lora_weights() and
transformers' add_adapter() make where nobody can reach it. Its other methods have subclasses that
refuse what they would train of FP8 weights without gradients. Nothing is different for models
without such weights.

>>> import octofold.integrations.peft
>>> octofold.nn.convert_weight_only(model)
>>> model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))

Of LoRA the plain one is supported: variants (DoRA …), lora_bias and first values that are computed
from the weight (PiSSA …) read or change FP8 weights and are refused; so is what would train FP8
weights themselves. merge_adapter() adds to the weight and casts it again, with one rounding to FP8;
unmerge_adapter() gives the weight its bytes back. Merge before a CUDA graph is captured.
"""

from typing import Any, Final

from ..hosts import require

require("peft")

import peft  # noqa: E402
from torch.nn import Module  # noqa: E402

from ...nn.layers.fp8_parameters import held  # noqa: E402
from ...nn.layers.patching import in_front_of  # noqa: E402
from .layers import LAYERS, require_trained  # noqa: E402

_TUNERS: Final[Any] = peft.PEFT_TYPE_TO_TUNER_MAPPING


class Trained:
    """Before peft's tuners: what would train nothing is refused before the model changes."""

    def _prepare_model(self, peft_config: Any, model: Module) -> None:
        require_trained(model, peft_config)
        super()._prepare_model(peft_config, model)  # type: ignore[misc]


class Fp8LoraModel(Trained, _TUNERS[peft.PeftType.LORA]):  # type: ignore[misc]
    """peft's LoraModel, over FP8 weights too."""

    def _prepare_model(self, peft_config: Any, model: Module) -> None:
        config = peft_config
        super()._prepare_model(config, model)
        if any(held(m) is not None or hasattr(m, "in_files") for m in model.modules()):
            config._register_custom_module({**(config._custom_modules or {}), **LAYERS})


for _kind, _tuner in list(_TUNERS.items()):
    if hasattr(_tuner, "_prepare_model"):  # the others train no part of the model
        _TUNERS[_kind] = in_front_of(Trained, _tuner)
_TUNERS[peft.PeftType.LORA] = Fp8LoraModel
