"""Octofold on several ranks of torch.distributed."""

from .fsdp.sharding import gather_in_fp8
from .tensor_parallel import (
    ColumnParallel,
    ExpertTensorParallel,
    MLPParallel,
    RowParallel,
    SharedInput,
    Whole,
    parallelize,
)

__all__ = [
    "ColumnParallel",
    "ExpertTensorParallel",
    "MLPParallel",
    "RowParallel",
    "SharedInput",
    "Whole",
    "gather_in_fp8",
    "parallelize",
]
