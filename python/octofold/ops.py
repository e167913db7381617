"""The operations from which layers are made. What a model builder needs is in octofold itself.

A function here takes arrays as octofold.gemm() does, runs on the CPU and on GPUs, and for torch
tensors is an op of torch's own. None has a gradient; octofold.nn has layers that do.
"""

from ._core.ops import scale_shape
from ._ops.attention import rotary
from ._ops.cast import Casts, Target, cast
from ._ops.cast_many import CastJob, cast_many
from ._ops.cast_sources import Activated, ActivationGradient, Gathered, Normed, NormStatistics
from ._ops.dot import dot
from ._ops.gated_gemm import gated_gemm
from ._ops.gemm_weight_only import gemm_weight_only_gradient, grouped_gemm_weight_only_gradient
from ._ops.norms import NormedRows, NormGradients, norm, norm_gradient
from ._ops.routing import (
    Routing,
    TopK,
    activation_dots,
    combine,
    combine_gradient,
    sort_by_expert,
    top_k,
    top_k_gradient,
)
from ._ops.words import as_words, convert_dtype, from_words, pack, transpose, unpack

__all__ = [
    "Activated",
    "ActivationGradient",
    "CastJob",
    "Casts",
    "Gathered",
    "NormGradients",
    "NormStatistics",
    "Normed",
    "NormedRows",
    "Routing",
    "Target",
    "TopK",
    "activation_dots",
    "as_words",
    "cast",
    "cast_many",
    "combine",
    "combine_gradient",
    "convert_dtype",
    "dot",
    "from_words",
    "gated_gemm",
    "gemm_weight_only_gradient",
    "grouped_gemm_weight_only_gradient",
    "norm",
    "norm_gradient",
    "pack",
    "rotary",
    "scale_shape",
    "sort_by_expert",
    "top_k",
    "top_k_gradient",
    "transpose",
    "unpack",
]

# The names that messages and pickles have for these types.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
