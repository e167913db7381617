"""FP8 layers on several ranks of torch.distributed: what travels is codes with scales.

>>> octofold.distributed.parallelize_experts(model, mesh["expert"])
>>> octofold.distributed.parallelize(model, mesh["tensor"])  # tensor and sequence parallelism
>>> octofold.distributed.gather_in_fp8(model)                # FSDP2 gathers weights in FP8

docs/distributed.md tells which bytes travel, what has the bits of one process, and how these go
together.
"""

from .. import nn  # noqa: F401  (whole, before its parts: octofold._core.imported.import_below)
from . import deepep
from .expert_parallel.experts import experts
from .expert_parallel.modules import ExpertParallel, ParallelExperts, parallelize_experts
from .fsdp import gather_in_fp8
from .overlap import GatheredProduct
from .tensor_parallel.experts import ExpertTensorParallel
from .tensor_parallel.parallelize import parallelize
from .tensor_parallel.replicated import SharedInput, Whole
from .tensor_parallel.styles import ColumnParallel, MLPParallel, RowParallel

__all__ = [
    "ColumnParallel",
    "ExpertParallel",
    "ExpertTensorParallel",
    "GatheredProduct",
    "MLPParallel",
    "ParallelExperts",
    "RowParallel",
    "SharedInput",
    "Whole",
    "deepep",
    "experts",
    "gather_in_fp8",
    "parallelize",
    "parallelize_experts",
]

# Known by their public names: in messages, and in files that torch.save() writes of whole modules.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
