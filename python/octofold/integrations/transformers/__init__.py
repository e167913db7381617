"""A quantizer for transformers, by the name "octofold". Importing this module registers it.

>>> from octofold.integrations.transformers import OctofoldConfig
>>> model = AutoModelForCausalLM.from_pretrained(name, quantization_config=OctofoldConfig())
>>> model.save_pretrained(folder)                          # codes and scales
>>> model = AutoModelForCausalLM.from_pretrained(folder)   # the same bits again

FP8 checkpoints of other libraries are loaded by their config as read here:

>>> config = octofold.integrations.transformers.checkpoint_config(name)
>>> model = AutoModelForCausalLM.from_pretrained(name, config=config)

Where peft is installed, its LoRA knows the layers (octofold.integrations.peft).
docs/integrations/transformers.md tells the rest.
"""

import importlib
from importlib.util import find_spec

from ..._core.errors import UnavailableError
from ..hosts import require

require("transformers")

from transformers.utils import logging  # noqa: E402

from .checkpoints import OctofoldConfig, checkpoint_config  # noqa: E402
from .quantizer import OctofoldQuantizer  # noqa: E402

__all__ = ["OctofoldConfig", "OctofoldQuantizer", "checkpoint_config"]

if find_spec("peft") is not None:
    try:
        importlib.import_module("octofold.integrations.peft")
    except UnavailableError as _error:
        logging.get_logger("transformers.octofold").warning("octofold: %s", _error)
