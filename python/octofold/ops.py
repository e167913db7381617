"""The operations below the layers: what a model builder seldom calls."""

from ._core.ops import scale_shape
from ._ops.cast import Casts, Target, cast
from ._ops.cast_sources import (
    Activated,
    ActivationGradient,
    Gathered,
    Normed,
    NormStatistics,
)
from ._ops.convert_dtype import convert_dtype
from ._ops.norm_gradient import NormGradients, norm_gradient

__all__ = [
    "Activated",
    "ActivationGradient",
    "Casts",
    "Gathered",
    "NormGradients",
    "NormStatistics",
    "Normed",
    "Target",
    "cast",
    "convert_dtype",
    "norm_gradient",
    "scale_shape",
]

# Known by their public names: in messages, and in what pickle and torch.save() write.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
