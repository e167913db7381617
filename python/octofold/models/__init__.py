"""Whole models: which of their layers gain by FP8, measured; and making them so.

>>> plan = octofold.models.advise(model, inputs)       # measures; changes nothing
>>> print(plan.report())
>>> octofold.models.apply(model, plan)                 # in place
>>> plan.save("plan.json")                             # for the next time: Plan.load()

docs/advisor.md says what is measured, and how the plan is picked.
"""

from .advise import advise
from .apply import apply
from .cast_linear import CastLinear
from .plan import Plan

__all__ = ["CastLinear", "Plan", "advise", "apply"]
