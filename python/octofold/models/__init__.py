"""Whole models, in one line.

>>> plan = octofold.models.advise(model, inputs)             # measures; changes nothing
>>> print(octofold.models.text_report(plan))                 # html_report(): a page with charts
>>> octofold.models.apply(model, plan)                       # the layers that gain, in place
>>> octofold.models.enable_layerwise_casting(model)          # all weights in FP8, in place
>>> octofold.models.disable_layerwise_casting(model)         # the way back
>>> octofold.models.load_checkpoint_into(model, checkpoint)  # FP8 weights of any family
>>> octofold.models.refit(model, named_tensors)              # other numbers, in the same memory
>>> octofold.models.save(model, folder)                      # with its layers in FP8
>>> octofold.models.load(type(model), folder)                # the same again

docs/advisor.md, docs/casting.md and docs/checkpoints.md describe them in full.
"""

from .. import nn  # noqa: F401  (whole, before its parts: octofold._core.imported.import_below)
from .advisor.advise import advise
from .advisor.plan import Plan, apply
from .advisor.report import html_report, text_report
from .layerwise.casting import disable_layerwise_casting, enable_layerwise_casting
from .load_into import load_checkpoint_into
from .renewal import refit
from .saved_models.load import load
from .saved_models.save import save

__all__ = [
    "Plan",
    "advise",
    "apply",
    "disable_layerwise_casting",
    "enable_layerwise_casting",
    "html_report",
    "load",
    "load_checkpoint_into",
    "refit",
    "save",
    "text_report",
]
