"""Whole models of other libraries, in one line.

>>> octofold.models.enable_layerwise_casting(model)   # weights in FP8, in place
>>> octofold.models.disable_layerwise_casting(model)  # the way back

docs/casting.md tells what that does to a model, and how it goes with other libraries.
"""

from .layerwise_casting import disable_layerwise_casting, enable_layerwise_casting

__all__ = [
    "disable_layerwise_casting",
    "enable_layerwise_casting",
]
