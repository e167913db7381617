"""Layers whose weights are split over the ranks of a group: styles for torch's
parallelize_module()."""

from .experts import ExpertTensorParallel
from .replicated import SharedInput, Whole
from .styles import ColumnParallel, MLPParallel, RowParallel

__all__ = [
    "ColumnParallel",
    "ExpertTensorParallel",
    "MLPParallel",
    "RowParallel",
    "SharedInput",
    "Whole",
]

# Known by their public names.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = "octofold.distributed"
