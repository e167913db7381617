"""Linear layers in FP8 for torch: to train, to convert a model, to serve one.

>>> octofold.nn.convert(model)                      # each torch.nn.Linear, in place
>>> octofold.nn.convert(model, recipe="rowwise", module_filter_fn=lambda m, fqn: fqn != "lm_head")
>>> octofold.nn.restore(model)                      # the way back
>>> octofold.nn.convert_weight_only(model)          # weights alone, for GPUs without FP8 units

docs/training.md tells how they work with the rest of torch, docs/recipes.md compares the recipes.
"""

import torch  # noqa: F401  (whole, before its parts: octofold._core.imported.import_below)

from .._core.recipe import Product, Recipe
from . import recipes
from .casting.fp8_weight import Fp8Weight
from .casting.step_casts import CastsAfterStep, cast_after_step
from .casting.weight_casts import keep_casts
from .conversion.experts import convert_experts
from .conversion.linear import convert, convert_weight_only, restore
from .conversion.norms import convert_norms
from .conversion.picking import Conversion
from .conversion.rotary import convert_rotary
from .layers.conv1d import Conv1D
from .layers.experts import Experts
from .layers.fp8_parameters import inference_linear, weight_only_linear
from .layers.linear import Linear
from .layers.mixture import MixtureOfExperts
from .layers.mlp import MLP
from .layers.norm_linear import NormLinear
from .layers.router import TopKRouter, route
from .layers.saving import wide_state_dict
from .recipes.choice import fp8_wins

__all__ = [
    "MLP",
    "CastsAfterStep",
    "Conv1D",
    "Conversion",
    "Experts",
    "Fp8Weight",
    "Linear",
    "MixtureOfExperts",
    "NormLinear",
    "Product",
    "Recipe",
    "TopKRouter",
    "cast_after_step",
    "convert",
    "convert_experts",
    "convert_norms",
    "convert_rotary",
    "convert_weight_only",
    "fp8_wins",
    "inference_linear",
    "keep_casts",
    "recipes",
    "restore",
    "route",
    "weight_only_linear",
    "wide_state_dict",
]

# Known by their public names: in messages, and in files that torch.save() writes of whole modules.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
