"""The operations that layers are made of. What a model builder needs is in octofold itself.

A function here takes arrays as octofold.gemm() does, runs on the CPU and on GPUs, and is an op of
torch's own for torch tensors. None has a gradient: those with one are octofold.nn's.
"""

from ._core.ops import scale_shape
from ._core.targets import ColumnReductions
from ._ops.activations import quantize_activation, quantize_activation_gradient
from ._ops.casts import convert, quantize_both, quantize_with_columns
from ._ops.dot import dot
from ._ops.gated_gemm import gated_gemm
from ._ops.gathered import quantize_gathered
from ._ops.gemm_weight_only import gemm_weight_only_gradient
from ._ops.norms import NormGradients, QuantizedNorm, norm_backward, quantize_norm
from ._ops.routing import (
    Routing,
    TopK,
    combine,
    combine_gradient,
    sort_by_expert,
    top_k,
    top_k_gradient,
)
from ._ops.words import as_words, from_words, pack, unpack

__all__ = [
    "ColumnReductions",
    "NormGradients",
    "QuantizedNorm",
    "Routing",
    "TopK",
    "as_words",
    "combine",
    "combine_gradient",
    "convert",
    "dot",
    "from_words",
    "gated_gemm",
    "gemm_weight_only_gradient",
    "norm_backward",
    "pack",
    "quantize_activation",
    "quantize_activation_gradient",
    "quantize_both",
    "quantize_gathered",
    "quantize_norm",
    "quantize_with_columns",
    "scale_shape",
    "sort_by_expert",
    "top_k",
    "top_k_gradient",
    "unpack",
]

# The names that messages and pickles have for these types.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
