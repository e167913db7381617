"""Linear layers in FP8 for torch: train, convert a model, serve one.

>>> octofold.nn.convert(model)                      # each torch.nn.Linear, in place
>>> octofold.nn.convert(model, recipe="rowwise", module_filter_fn=lambda m, fqn: fqn != "lm_head")
>>> octofold.nn.restore(model)                      # the way back
>>> octofold.nn.convert_weight_only(model)          # weights alone, for GPUs without FP8 units

docs/training.md says how they go with the rest of torch, docs/recipes.md what recipes there are.
"""

from . import recipes
from .choice import fp8_wins
from .conv1d import Conv1D
from .conversion import Conversion
from .convert import convert, restore
from .convert_experts import convert_experts
from .convert_weight_only import convert_weight_only
from .expert_layer import Experts
from .inference import InferenceLinear
from .linear import Linear
from .lora import lora_config
from .mixture import MixtureOfExperts
from .mlp import MLP
from .norm_linear import NormLinear
from .recipes import Delayed, Product, Recipe
from .router import TopKRouter, route
from .weight_casts import keep_casts
from .weight_only import WeightOnlyLinear

__all__ = [
    "MLP",
    "Conv1D",
    "Conversion",
    "Delayed",
    "Experts",
    "InferenceLinear",
    "Linear",
    "MixtureOfExperts",
    "NormLinear",
    "Product",
    "Recipe",
    "TopKRouter",
    "WeightOnlyLinear",
    "convert",
    "convert_experts",
    "convert_weight_only",
    "fp8_wins",
    "keep_casts",
    "lora_config",
    "recipes",
    "restore",
    "route",
]
