"""Checks that the arguments of a linear layer fit together."""

from typing import Any, Final, TypeGuard

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, invalid_argument
from ..._core.torch import FLOAT8
from ..._core.torch_ops import PLAIN_TYPES

_WIDE: Final = (torch.bfloat16, torch.float16, torch.float32)


def require_fitting(
    operation: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weight_name: str = "weight",
    bias_name: str = "bias",
) -> None:
    """For x [..., in], weight [out, in], bias [out]; raises InvalidArgumentError that names the
    one that does not fit."""
    require_input(operation, x, weight, weight_name)
    require_weight(operation, weight, bias, weight_name, bias_name)


def require_weight(
    operation: str, weight: Tensor, bias: Tensor | None, weight_name: str, bias_name: str
) -> None:
    """The same of weight [out, in] and bias [out] alone."""
    require_wide(operation, weight_name, weight)
    if weight.dim() != 2 or weight.numel() == 0:
        expected = "[out, in] with at least 1 feature each"
        raise invalid_argument(operation, weight_name, expected, list(weight.shape))
    if bias is not None:
        words = f"the features that {weight_name} {list(weight.shape)} puts out"
        require_vector(operation, bias_name, bias, weight.shape[0], words, weight)


def require_vector(
    operation: str, name: str, value: Tensor, size: int, words: str, weight: Tensor
) -> None:
    """A tensor [size] where the weight is; `words` say whose size that is."""
    require_wide(operation, name, value)
    if value.dim() != 1 or value.shape[0] != size:
        raise invalid_argument(operation, name, f"[{size}], {words}", list(value.shape))
    if value.device != weight.device:
        raise invalid_argument(operation, name, _where(weight), value.device)


def require_wide(operation: str, name: str, value: object) -> None:
    """A tensor of bfloat16, float16 or float32."""
    if not isinstance(value, Tensor) or value.dtype not in _WIDE:
        raise _not_wide(operation, name, value)
    if is_dtensor(value):
        expected = (
            "whole weights, and tensors of this rank: fully_shard() a module or what it is in"
        )
        expected += "; octofold.distributed.parallelize(), ColumnParallel and RowParallel in the "
        expected += "place of torch's ColwiseParallel and RowwiseParallel"
        raise invalid_argument(operation, name, expected, "a DTensor")


def require_input(operation: str, x: Tensor, weight: Tensor, weight_name: str = "weight") -> None:
    """The same of x [..., in] alone, for a weight [out, in] of any dtype."""
    require_wide(operation, "x", x)
    if isinstance(weight, Tensor) and weight.dim() == 2:
        if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
            expected = f"[..., {weight.shape[1]}] for {weight_name} {list(weight.shape)}"
            raise invalid_argument(operation, "x", expected, list(x.shape))
        if x.device != weight.device:
            raise invalid_argument(operation, "x", _where(weight), x.device)


def require_features(operation: str, in_features: object, out_features: object) -> None:
    """Both a whole number of at least 1: no kernel takes none."""
    for name, value in (("in_features", in_features), ("out_features", out_features)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid_argument(operation, name, "a whole number of at least 1", repr(value))


def is_dtensor(value: object) -> bool:
    """True if FSDP2 or tensor parallelism has spread the tensor over ranks."""
    # Importing DTensor takes longer than all of torch.nn, and a name that is not there than a type.
    return type(value) not in PLAIN_TYPES and hasattr(value, "device_mesh")


def local_part(parameter: Any) -> Any:
    """This rank's part of a parameter that is spread over a group; all of any other one."""
    return parameter.to_local() if is_dtensor(parameter) else parameter


def is_fp8(value: object) -> TypeGuard[Tensor]:
    """True if this is a tensor of FP8 codes."""
    return isinstance(value, Tensor) and value.dtype in FLOAT8


def _where(weight: Tensor) -> str:
    return f"a tensor on {weight.device}, where the weight is"


def _not_wide(operation: str, argument: str, got: object) -> InvalidArgumentError:
    kind = type(got)
    words = got.dtype if isinstance(got, Tensor) else f"{kind.__module__}.{kind.__qualname__}"
    expected = "a torch tensor of bfloat16, float16 or float32"
    return invalid_argument(operation, argument, expected, words)
