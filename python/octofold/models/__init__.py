"""Whole models.

>>> octofold.models.load_checkpoint_into(model, checkpoint)    # weights in FP8, whose family ever
"""

from .load import load_checkpoint_into

__all__ = ["load_checkpoint_into"]
