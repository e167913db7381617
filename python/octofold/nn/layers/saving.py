"""Numbers that layers with an FP8 weight give to save_pretrained(), whose readers expect them.

Files of save_pretrained() are read by libraries that know nothing of Octofold's layers and would
take codes for the weight's values. So while a method of this name runs, whichever library's it is,
state_dict() has the weight that the codes stand for, under the name and in the dtype that a model
without FP8 has; at all other times it has codes and scales. No hook tells the two apart, as
save_pretrained() asks for the same state_dict() as everybody else, and a mark at the model would
miss models of which only a part was changed; so the layers look who is asking. A model that another
library's quantizer of ours has made says in its config that it has codes: its quantizer has
`saves_codes`, and the files have them.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..autograd.fitting import is_fp8

_WRITER: Final = "save_pretrained"
_OF_ADAPTERS: Final = "get_peft_model_state_dict"
"""peft's, which asks for all of a state_dict() and takes the adapters and, of models that got new
tokens, the embeddings and the head."""
_WIDE: Final = (torch.bfloat16, torch.float16, torch.float32)


def give_numbers(
    layer: Module,
    destination: dict[str, Any],
    prefix: str,
    scale_name: str,
    numbers: Callable[[torch.dtype], Tensor],
    own_dtype: torch.dtype | None,
) -> None:
    """Puts numbers, on the CPU, in the place of a layer's codes and scales in a state_dict(), where
    save_pretrained() asks. Not so where it takes adapters alone, for which all weights in 16 bits
    would be made in vain.

    numbers: makes them in a dtype.
    own_dtype: the dtype that the weight had; None: it is not known, and is the model's.
    Raises InvalidArgumentError where the codes are offloaded.
    """
    codes = destination.get(f"{prefix}weight")
    if not isinstance(codes, Tensor) or not is_fp8(codes):
        return
    writer, of_adapters = _writer()
    if writer is None or (of_adapters and not _is_of_tokens(layer, writer)):
        return
    if getattr(getattr(writer, "hf_quantizer", None), "saves_codes", False):
        return  # the config that it writes tells its reader that they are codes
    _require_memory(codes, f"{prefix}weight")
    dtype = own_dtype if own_dtype in _WIDE else None
    destination[f"{prefix}weight"] = numbers(dtype or _dtype_of(writer)).cpu()
    destination.pop(f"{prefix}{scale_name}", None)


def give_whole_rows(destination: dict[str, Any], prefix: str, *names: str) -> None:
    """Codes whose rows are apart in memory (frameworks.row_stride()) in a contiguous copy, as
    safetensors takes no others."""
    for name in names:
        key = f"{prefix}{name}"
        codes = destination.get(key)
        if isinstance(codes, Tensor) and not codes.is_contiguous():
            destination[key] = codes.contiguous()


def give_as_files_have_them(
    destination: dict[str, Any],
    prefix: str,
    values: Callable[[torch.dtype], dict[str, Tensor | None]],
) -> None:
    """The same of several tensors that files have in another way: where save_pretrained() asks,
    those of `values`, by their names, of a dtype, in place of those that a state_dict() has; None:
    it has none of this name. A model that another library has quantized is written as it is."""
    writer, of_adapters = _writer()
    if writer is None or of_adapters or getattr(writer, "hf_quantizer", None) is not None:
        return
    for name, value in values(_dtype_of(writer)).items():
        key = f"{prefix}{name}"
        if value is None:
            destination.pop(key, None)
            continue
        _require_memory(value, key)
        destination[key] = value.detach().cpu().contiguous()


def _require_memory(tensor: Tensor, name: str) -> None:
    if tensor.is_meta:
        expected = (
            "weights in memory (accelerate.hooks.remove_hook_from_submodules(model) brings back "
            "what is offloaded)"
        )
        raise invalid_argument(_WRITER, "model", expected, f"'{name}' on meta")


def _writer() -> tuple[Any, bool]:
    """Returns the object that the innermost running save_pretrained() is a method of (None: none
    runs), and whether it is asking for adapters."""
    frame: FrameType | None = sys._getframe(1)
    of_adapters = False
    while frame is not None:
        name = frame.f_code.co_name
        of_adapters = of_adapters or name == _OF_ADAPTERS
        if name == _WRITER:
            return frame.f_locals.get("self", frame), of_adapters
        frame = frame.f_back
    return None, False


def _is_of_tokens(layer: Module, model: Any) -> bool:
    """True if the layer is the model's embedding or head, or what peft has wrapped there."""
    for name in ("get_input_embeddings", "get_output_embeddings"):
        found = getattr(model, name, None)
        one = found() if callable(found) else None
        if one is layer or getattr(one, "base_layer", None) is layer:
            return True
    return False


def _dtype_of(writer: object) -> torch.dtype:
    """The dtype of a model's numbers."""
    if isinstance(writer, Module):
        for tensor in (*writer.parameters(), *writer.buffers()):
            if tensor.dtype in _WIDE and tensor.dim() > 0:
                return tensor.dtype
    return torch.bfloat16
