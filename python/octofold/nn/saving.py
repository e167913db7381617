"""What layers with an FP8 weight give to save_pretrained(), whose readers expect numbers.

Files of save_pretrained() are read by libraries that know nothing of Octofold's layers and would
take codes for the weight's values. So while a method of this name runs, whichever library's it is,
state_dict() has the weight that the codes stand for, under the name and in the dtype that a model
without FP8 has; at all other times it has codes and scales. No hook tells the two apart, as
save_pretrained() asks for the same state_dict() as everybody else, and a mark at the model would
miss models of which only a part was changed; so the layers look who is asking.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..errors import invalid_argument
from .fitting import is_fp8

_WRITER: Final = "save_pretrained"
_WIDE: Final = (torch.bfloat16, torch.float16, torch.float32)


def give_numbers(
    destination: dict[str, Any],
    prefix: str,
    scale_name: str,
    numbers: Callable[[torch.dtype], Tensor],
    own_dtype: torch.dtype | None,
) -> None:
    """Where save_pretrained() asks: in a state_dict() that has a layer's codes and scales, numbers
    in their place, on the CPU.

    numbers: makes them in a dtype.
    own_dtype: the dtype that the weight had; None: it is not known, and is the model's.
    Raises InvalidArgumentError where the codes are offloaded.
    """
    codes = destination.get(f"{prefix}weight")
    if not isinstance(codes, Tensor) or not is_fp8(codes):
        return
    writer = _writer()
    if writer is None:
        return
    if codes.is_meta:
        expected = (
            "weights in memory (accelerate.hooks.remove_hook_from_submodules(model) brings back "
            "what is offloaded)"
        )
        raise invalid_argument(_WRITER, "model", expected, f"'{prefix}weight' on meta")
    dtype = own_dtype if own_dtype in _WIDE else None
    destination[f"{prefix}weight"] = numbers(dtype or _dtype_of(writer)).cpu()
    destination.pop(f"{prefix}{scale_name}", None)


def _writer() -> Any:
    """What the innermost save_pretrained() that is running is a method of; None: none runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _WRITER:
            return frame.f_locals.get("self", frame)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _dtype_of(writer: object) -> torch.dtype:
    """Of a model's numbers."""
    if isinstance(writer, Module):
        for tensor in (*writer.parameters(), *writer.buffers()):
            if tensor.dtype in _WIDE and tensor.dim() > 0:
                return tensor.dtype
    return torch.bfloat16
