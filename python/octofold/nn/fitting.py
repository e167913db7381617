"""Whether the arguments of a linear layer fit together."""

from typing import Final, TypeGuard

import torch
from torch import Tensor

from ..errors import InvalidArgumentError, invalid_argument

_WIDE: Final = (torch.bfloat16, torch.float16, torch.float32)
_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


def require_fitting(operation: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """For x [..., in], weight [out, in], bias [out]; raises InvalidArgumentError that names the
    one that does not fit."""
    require_input(operation, x, weight)
    if not isinstance(weight, Tensor) or weight.dtype not in _WIDE:
        raise _not_wide(operation, "weight", weight)
    if weight.dim() != 2 or weight.numel() == 0:
        expected = "[out, in] with at least 1 feature each"
        raise invalid_argument(operation, "weight", expected, list(weight.shape))
    if bias is None:
        return
    if not isinstance(bias, Tensor) or bias.dtype not in _WIDE:
        raise _not_wide(operation, "bias", bias)
    if bias.dim() != 1 or bias.shape[0] != weight.shape[0]:
        expected = f"[{weight.shape[0]}], the features that weight {list(weight.shape)} puts out"
        raise invalid_argument(operation, "bias", expected, list(bias.shape))
    if bias.device != weight.device:
        raise invalid_argument(operation, "bias", _where(weight), bias.device)


def require_input(operation: str, x: Tensor, weight: Tensor) -> None:
    """The same of x [..., in] alone, for a weight [out, in] of any dtype."""
    if not isinstance(x, Tensor) or x.dtype not in _WIDE:
        raise _not_wide(operation, "x", x)
    if isinstance(weight, Tensor) and weight.dim() == 2:
        if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
            expected = f"[..., {weight.shape[1]}] for weight {list(weight.shape)}"
            raise invalid_argument(operation, "x", expected, list(x.shape))
        if x.device != weight.device:
            raise invalid_argument(operation, "x", _where(weight), x.device)


def require_features(operation: str, in_features: object, out_features: object) -> None:
    """Both a whole number of at least 1: no kernel takes none."""
    for name, value in (("in_features", in_features), ("out_features", out_features)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise invalid_argument(operation, name, "a whole number of at least 1", repr(value))


def is_fp8(value: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor of FP8 codes."""
    return isinstance(value, Tensor) and value.dtype in _FP8


def _where(weight: Tensor) -> str:
    return f"a tensor on {weight.device}, where the weight is"


def _not_wide(operation: str, argument: str, got: object) -> InvalidArgumentError:
    kind = type(got)
    words = got.dtype if isinstance(got, Tensor) else f"{kind.__module__}.{kind.__qualname__}"
    expected = "a torch tensor of bfloat16, float16 or float32"
    return invalid_argument(operation, argument, expected, words)
