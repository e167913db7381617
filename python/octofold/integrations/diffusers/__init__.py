"""A quantizer for Diffusers, by the name "octofold". Importing this module registers it.

>>> from octofold.integrations.diffusers import OctofoldConfig
>>> config = OctofoldConfig()
>>> model = FluxTransformer2DModel.from_pretrained(name, quantization_config=config)
>>> model.save_pretrained(folder)                           # codes and scales
>>> model = FluxTransformer2DModel.from_pretrained(folder)  # the same bits again

LoRA over these layers needs peft's table of tuners to know them (octofold.integrations.peft), and
text encoders need transformers' quantizer; both are registered too where these packages are.
docs/integrations/diffusers.md tells the rest.
"""

import importlib
from importlib.util import find_spec

from ..._core.errors import Error
from ..hosts import require

require("diffusers")

from diffusers.quantizers.auto import (  # noqa: E402
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
)
from diffusers.utils import logging  # noqa: E402

from ..model_loading import NAME  # noqa: E402
from .quantizer import OctofoldConfig, OctofoldQuantizer  # noqa: E402

__all__ = ["OctofoldConfig", "OctofoldQuantizer"]

# Diffusers has no functions for it.
AUTO_QUANTIZATION_CONFIG_MAPPING[NAME] = OctofoldConfig
AUTO_QUANTIZER_MAPPING[NAME] = OctofoldQuantizer

for _other in ("transformers", "peft"):
    if find_spec(_other) is None:
        continue
    try:
        importlib.import_module(f"octofold.integrations.{_other}")
    except Error as _error:
        logging.get_logger("diffusers.octofold").warning("octofold: %s", _error)
