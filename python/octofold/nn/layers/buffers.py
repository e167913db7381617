"""Buffers that a module moves but does not convert."""

from torch import Tensor
from torch.nn import Module


def keep_dtypes(module: Module, before: dict[str, Tensor]) -> None:
    """After Module._apply(), by which to(), half() and the like work: the buffers that these were
    `before` and that it has converted get their dtype and their values back, where they are now."""
    for name, buffer in before.items():
        now = module._buffers[name]
        if now is not None and now.dtype != buffer.dtype:
            module._buffers[name] = buffer.to(now.device)
