"""Files have numbers in place of an Fp8Weight, or codes and scales.

state_dict() of a layer with an FP8 weight has the Fp8Weight that is its parameter, for
load_state_dict() of the same layer. In wide_state_dict() it has the weight that they stand for,
under the name, in the dtype and, of experts, in the layout (`in_files`) that a model without FP8
has. save_pretrained() of the libraries below runs in it, for each model: the method of the
library's class is wrapped when the first layer is made with the library there. A model that a
quantizer of ours has made says in its config that it has codes: its quantizer has `saves_codes`,
and the files have them, each beside its scales. Writers of other libraries are for the user to call
in wide_state_dict(); what they get without it is an Fp8Weight, which has no memory of numbers for
safetensors to write: an error.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..autograd.fitting import is_fp8, local_part
from ..casting.fp8_weight import FUNCTIONS, Fp8Weight
from ..casting.weight_layouts import Stacks
from ..casting.weight_tensors import with_local
from .patching import PATCHES, WRITES, wrap_method

_NAME: Final = "octofold.nn.wide_state_dict"
_METHOD: Final = "save_pretrained"


class _Reader(NamedTuple):
    """Who gets a state_dict()."""

    operation: str
    model: Any
    """The model that is read; None: any, as it is."""
    adapters: bool = False
    """True if adapters are taken from it alone and, of models that got new tokens, the embeddings
    and the head: all other weights would be made in 16 bits in vain."""
    codes: bool = False
    """True if codes are given, and scales beside them; else numbers."""


_ANYBODY: Final = _Reader("state_dict", None)
_reader: Final = ContextVar("octofold_reader", default=_ANYBODY)

TAKES_WEIGHTS: Final[set[str]] = set()
"""The methods of quantizers of transformers and Diffusers whose files take Fp8Weights."""

_waiting: Final = {patch for patch, row in PATCHES.items() if row[2] is WRITES}
"""Rows of classes whose save_pretrained() is yet to be wrapped, as nobody has imported them."""


@contextlib.contextmanager
def wide_state_dict(model: Module) -> Iterator[None]:
    """While it is open, state_dict() has the numbers that FP8 weights stand for, on the CPU, and no
    scales: what a model without FP8 has, for files that others read.

    model: whose; a weight has the dtype of its Fp8Weight. Of a spread one it is a DTensor.

    save_pretrained() of transformers, Diffusers, peft and huggingface_hub needs no such context.
    Raises InvalidArgumentError; state_dict() does where weights are offloaded.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    with _read_by(_Reader(_NAME, model)):
        yield


def coded_state_dict(model: Any) -> contextlib.AbstractContextManager[None]:
    """While it is open, state_dict() of the model has codes, and scales by the names of FP8
    checkpoints, and save_pretrained() writes what it is given."""
    return _read_by(_Reader("octofold.models.save", model, codes=True))


@contextlib.contextmanager
def _read_by(reader: _Reader) -> Iterator[None]:
    before, hooks = _reader.set(reader), []
    give = functools.partial(_give_codes if reader.codes else _give_numbers, reader)
    if reader.model is not None:
        for module in reader.model.modules():
            if _is_rewritten(module) and not (
                reader.adapters and not _is_of_tokens(module, reader.model)
            ):
                hooks.append(module.register_state_dict_post_hook(give))
    try:
        yield
    finally:
        _reader.reset(before)
        for hook in hooks:
            hook.remove()


def _is_rewritten(module: Module) -> bool:
    """True if others' files have something else than the module's parameters."""
    weights = module._parameters.values()
    is_laid_out = getattr(module, "in_files", Stacks()) != Stacks()
    return is_laid_out or any(isinstance(local_part(weight), Fp8Weight) for weight in weights)


def _give_numbers(
    reader: _Reader, module: Module, state: dict[str, Any], prefix: str, metadata: Any
) -> None:
    """Puts numbers in the places of a module's codes, in the layout that files have, for the
    innermost of readers."""
    if reader is not _reader.get():
        return
    stacks: Stacks = getattr(module, "in_files", Stacks())
    for name, weight in module._parameters.items():
        key, is_coded = f"{prefix}{name}", isinstance(part := local_part(weight), Fp8Weight)
        if weight is None or (not is_coded and stacks == Stacks()):
            continue
        if state[key].is_meta:
            expected = (
                "weights in memory (accelerate.hooks.remove_hook_from_submodules(model) brings "
                "back what is offloaded)"
            )
            raise invalid_argument(reader.operation, "model", expected, f"'{key}' on meta")
        numbers = with_local(weight, part.dequantize()) if is_coded else weight
        state[key] = stacks.to_files(name, numbers).detach().cpu().contiguous()


def _give_codes(
    reader: _Reader, module: Module, state: dict[str, Any], prefix: str, metadata: Any
) -> None:
    """Puts codes and scales in the places of a module's Fp8Weights. Rows that are apart in memory
    (frameworks.row_stride()) are copied, as safetensors takes no others."""
    if reader is not _reader.get():
        return
    for name in module._parameters:
        weight = state.get(f"{prefix}{name}")
        if weight is not None and isinstance(local_part(weight), Fp8Weight):
            if not isinstance(weight, Fp8Weight):
                expected = "weights that are whole (torch.distributed.checkpoint has spread ones)"
                raise invalid_argument(reader.operation, "model", expected, f"'{prefix}{name}'")
            state[f"{prefix}{name}"] = weight.codes.contiguous()
            state[f"{prefix}{weight.scale_name(name)}"] = weight.scale


class _NoMemory:
    """The memory that Tensor.storage() names of an Fp8Weight, of which safetensors wants the
    address, and torch.distributed.checkpoint of torch 2.9 the size."""

    def __init__(self, weight: Fp8Weight) -> None:
        self._weight = weight

    def size(self) -> int:
        return self._weight.numel()

    def data_ptr(self) -> int:
        expected = "numbers (octofold.nn.wide_state_dict()), or a folder of octofold.models.save()"
        raise invalid_argument("safetensors", "tensors", expected, self._weight)


FUNCTIONS[Tensor.storage] = _NoMemory


def wrap_writers() -> list[str]:
    """Let save_pretrained() of the classes that have been imported since the last time run in
    wide_state_dict(), and return the names of their rows."""
    found = [patch for patch in _waiting if wrap_method(patch, _METHOD, _wrapped)]
    _waiting.difference_update(found)
    return found


def _wrapped(patch: str, method: Callable[..., Any]) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def save_pretrained(self: Any, *arguments: Any, **options: Any) -> Any:
        quantizer = getattr(self, "hf_quantizer", None)
        kind = getattr(getattr(quantizer, "quantization_config", None), "quant_method", None)
        if kind in TAKES_WEIGHTS or _reader.get().codes:
            return method(self, *arguments, **options)
        if getattr(quantizer, "saves_codes", False):
            with coded_state_dict(self):
                return method(self, *arguments, **options)
        adapters = patch == "peft" or (
            patch == "transformers" and getattr(self, "_hf_peft_config_loaded", False)
        )
        given = signature.bind(self, *arguments, **options).arguments
        if not adapters:
            _require_numbers(self, given.get("state_dict"))
        with _read_by(_Reader(_METHOD, self, adapters)):
            return method(self, *arguments, **options)

    return save_pretrained


def _require_numbers(model: Any, state: dict[str, Any] | None) -> None:
    """Refuses the codes of a model with layers of Octofold's, which its reader would take for the
    values."""
    values = (state or {}).items()
    codes = next((name for name, v in values if is_fp8(v) or isinstance(v, Fp8Weight)), None)
    if codes is not None and any(map(_is_rewritten, model.modules())):
        expected = "numbers: none given, or a state_dict() from octofold.nn.wide_state_dict(model)"
        raise invalid_argument(_METHOD, "state_dict", expected, f"FP8 codes as '{codes}'")


def _is_of_tokens(layer: Module, model: Any) -> bool:
    """True if the layer is the model's embedding or head, or what peft has wrapped there."""
    for name in ("get_input_embeddings", "get_output_embeddings"):
        found = getattr(model, name, None)
        one = found() if callable(found) else None
        if one is layer or getattr(one, "base_layer", None) is layer:
            return True
    return False
