"""Weights in high precision that know how they are to travel."""

from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves, tree_map_only

_aten: Final = torch.ops.aten
_KEPT: Final = (
    _aten.detach.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten._to_copy.default,
    _aten._pin_memory.default,
    _aten.empty_like.default,
    _aten.new_zeros.default,
    _aten.new_empty.default,
    _aten.slice.Tensor,
    _aten.split.Tensor,
    _aten.view.default,
    _aten.as_strided.default,
)
"""Operations that move, copy and cut weights, as modules and FSDP do, make such weights again. All
else makes plain tensors."""


class WrappedWeight(Tensor):
    """The tensor `plain`, and what a subclass says of its journey (like()). Computes as `plain`
    does; writing to it writes there."""

    plain: Tensor

    @staticmethod
    def __new__(cls, plain: Tensor, *arguments: Any) -> Self:
        made: Self = Tensor._make_wrapper_subclass(
            cls,
            plain.shape,
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=plain.device,
            pin_memory=plain.is_pinned(),
        )
        made.plain = plain
        return made

    def like(self, plain: Tensor) -> Self:
        """Another tensor, of which the same is said."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = args[0] if args else None
        plain_args, plain_kwargs = tree_map_only(
            WrappedWeight, lambda weight: weight.plain, (args, kwargs or {})
        )
        result = func(*plain_args, **plain_kwargs)
        if isinstance(first, WrappedWeight):
            if func in _KEPT:
                # torch.inference_mode() makes no views of weights to tensors of its own.
                with torch.inference_mode(all(t.is_inference() for t in tree_leaves(result))):
                    return tree_map_only(Tensor, first.like, result)
            if result is first.plain:  # written to in place
                return first
        return result


def plain_weight(weight: Tensor) -> Tensor:
    """A weight as operations take it."""
    return weight.plain if isinstance(weight, WrappedWeight) else weight


def without_wrapping(value: Any) -> Any:
    """A weight as files have it, in the same memory: whole, or a DTensor of a shard."""
    if isinstance(value, WrappedWeight):
        return value.plain
    local = getattr(value, "_local_tensor", None)
    return with_local(value, local.plain) if isinstance(local, WrappedWeight) else value


def wrapped_as(parameter: Any, value: Any) -> Any:
    """A weight of a file as the parameter has it whose place it takes: without_wrapping()'s way
    back."""
    like, local = (getattr(t, "_local_tensor", t) for t in (parameter, value))
    if not isinstance(like, WrappedWeight) or isinstance(local, WrappedWeight):
        return value
    return with_local(value, like.like(local.detach()))


def with_local(value: Any, local: Tensor) -> Tensor:
    """A DTensor like this one whose part on this rank is another tensor; of no DTensor that tensor
    itself."""
    if not hasattr(value, "device_mesh"):
        return local
    from torch.distributed.tensor import DTensor  # takes longer to import than all of torch.nn

    mesh, placements = value.device_mesh, value.placements
    whole: Tensor = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride()
    )
    return whole


def is_plain_parameter(value: object) -> bool:
    """True if this is a torch.nn.Parameter of numbers in memory, not a subclass that means
    something else by them (quantized, sharded, yet without a shape)."""
    return type(value) is Parameter and type(value.data) is Tensor and is_wide(value)


def is_wide(value: Tensor) -> bool:
    """True if these are numbers that can be cast to FP8."""
    return value.dtype in (torch.float32, torch.float16, torch.bfloat16)
