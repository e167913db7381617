"""FP8 across GPUs, on torch.distributed."""

from .overlap import GatheredProduct

__all__ = ["GatheredProduct"]
