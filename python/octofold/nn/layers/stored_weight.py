"""A parameter that holds FP8 codes, and that nobody takes for numbers to compute with."""

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter


class StoredWeight(Parameter):
    """FP8 codes as a layer's `weight`: frozen, and of their own dtype for good.

    They are a parameter, as named_parameters(), state_dict(), accelerate's offloading and
    module.to(device) expect of a weight. But is_floating_point() is False, as of the integers that
    quantized weights of other libraries are: by it module.to(dtype), half() and the like tell what
    to convert, and transformers' and Diffusers' models of which dtype they are.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = False) -> Self:
        """requires_grad: as accelerate and deepcopy pass it; codes never do."""
        return super().__new__(cls, data, False)

    def is_floating_point(self) -> bool:
        """False: not to be converted."""
        return False

    def requires_grad_(self, mode: bool = True) -> Self:
        """Stays frozen, so that model.requires_grad_() may be called."""
        return self

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # By default torch restores a plain Parameter; and pickle reads no FP8 of torch's.
        return _restored, (self.detach().view(torch.uint8), self.dtype)


def _restored(codes: Tensor, dtype: torch.dtype) -> StoredWeight:
    return StoredWeight(codes.view(dtype))


def stored(codes: Tensor) -> StoredWeight:
    """Codes as a StoredWeight; one is returned as it is."""
    return codes if isinstance(codes, StoredWeight) else StoredWeight(codes.detach())


def is_plain_parameter(value: object) -> bool:
    """True if this is a torch.nn.Parameter of numbers in memory, not a subclass that means
    something else by them (quantized, sharded, yet without a shape)."""
    return type(value) is Parameter and type(value.data) is Tensor and is_wide(value)


def is_wide(value: Tensor) -> bool:
    """True if these are numbers that can be cast to FP8."""
    return value.dtype in (torch.float32, torch.float16, torch.bfloat16)
