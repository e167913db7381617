"""Layers whose weights are split over the ranks of a group: styles for torch's
parallelize_module()."""

from .experts import ExpertTensorParallel
from .parallelize import parallelize
from .replicated import SharedInput, Whole
from .styles import ColumnParallel, MLPParallel, RowParallel

__all__ = [
    "ColumnParallel",
    "ExpertTensorParallel",
    "MLPParallel",
    "RowParallel",
    "SharedInput",
    "Whole",
    "parallelize",
]

# Known by their public names.
for _name in __all__:
    globals()[_name].__module__ = "octofold.distributed"
