"""A quantizer for transformers, by the name "octofold". Importing this module registers it.

>>> from octofold.integrations.transformers import OctofoldConfig
>>> model = AutoModelForCausalLM.from_pretrained(name, quantization_config=OctofoldConfig())
>>> model.save_pretrained(folder)                          # codes and scales
>>> model = AutoModelForCausalLM.from_pretrained(folder)   # the same bits again

FP8 checkpoints of other libraries are loaded by their config as read here:

>>> config = octofold.integrations.transformers.checkpoint_config(name)
>>> model = AutoModelForCausalLM.from_pretrained(name, config=config)

docs/integrations/transformers.md tells the rest.
"""

from ..hosts import require

require("transformers")

from .checkpoints import checkpoint_config  # noqa: E402
from .config import OctofoldConfig  # noqa: E402
from .quantizer import OctofoldQuantizer  # noqa: E402

__all__ = ["OctofoldConfig", "OctofoldQuantizer", "checkpoint_config"]
