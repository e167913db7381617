"""Whole models, in one line.

>>> octofold.models.load_checkpoint_into(model, checkpoint)  # weights in FP8, whose family ever
>>> octofold.models.enable_layerwise_casting(model)          # weights in FP8, in place
>>> octofold.models.disable_layerwise_casting(model)         # the way back

docs/checkpoints.md and docs/casting.md tell the rest.
"""

from .layerwise_casting import disable_layerwise_casting, enable_layerwise_casting
from .load import load_checkpoint_into

__all__ = [
    "disable_layerwise_casting",
    "enable_layerwise_casting",
    "load_checkpoint_into",
]
