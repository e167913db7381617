"""Octofold on several ranks of torch.distributed."""

from .fsdp.sharding import gather_in_fp8

__all__ = ["gather_in_fp8"]
