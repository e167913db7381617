"""Models with layers in FP8 to folders."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._core.errors import invalid_argument, require_type
from ..._core.library import note
from ...nn.conversion.expert_blocks import chooses_by_top_k
from ...nn.layers.fp8_parameters import weight_of
from ...nn.layers.saving import coded_state_dict
from . import family
from .folder import WEIGHTS, Records, appearing, require_new, write_records, write_tensors
from .records import EXPERTS, Record, record_of, router_beside

_NAME: Final = "octofold.models.save"


@torch.no_grad()
def save(model: Module, folder: str | os.PathLike[str]) -> Path:
    """Write a model with layers in FP8 to a folder. The layers are those that apply(),
    load_checkpoint_into(), enable_layerwise_casting(), octofold.nn.convert_weight_only() and
    convert_experts(weights="fp8") make.

    model: a model of any library. It is left as it is.
    folder: a folder that does not exist yet, or is empty. It appears whole or not at all.

    A model of transformers becomes, if its layers allow it, a checkpoint of the family
    compressed-tensors, whose config describes each layer. transformers, servers and
    octofold.load_checkpoint() read it. In it, embeddings and convolutions of layerwise casting are
    written as the numbers that their codes stand for. The log says why another model is not written
    so. Such a model is written with all of its codes, and from_pretrained() finds no weights in the
    folder. octofold.models.load() reads both.

    Returns the folder's path.
    Raises InvalidArgumentError, which names the argument, IoError, and UnavailableError without the
    package safetensors.
    """
    require_type(_NAME, "model", model, Module, "a torch.nn.Module")
    path = require_new(_NAME, folder)
    state = _state_of(model)
    layers = {
        name: module for name, module in model.named_modules() if record_of(module) is not None
    }
    records = {name: record for name, one in layers.items() if (record := record_of(one))}
    for name, record in records.items():
        if record["kind"] == EXPERTS:
            record["router"] = chooses_by_top_k(router_beside(model, name))
    reason = _why_no_family(model, layers, records)
    same = _same(state)
    with appearing(path) as new:
        if reason is None:
            write_records(new, Records(family.NAME, records, same))
            _write_family(model, new, _in_family(state, layers, records), records, same)
        else:
            if _is_transformers(model):
                note(f"{_NAME}: {path} is for octofold.models.load() alone: {reason}")
            write_records(new, Records(None, records, same))
            _write_config(model, new)
            tensors = {name: value for name, value in state.items() if name not in same}
            write_tensors(new / WEIGHTS, tensors)
    return path


def _state_of(model: Module) -> dict[str, Tensor]:
    with coded_state_dict(model):
        state: dict[str, Any] = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            got = f"{type(value).__qualname__} as '{name}'"
            raise invalid_argument(_NAME, "model", "tensors alone in its state_dict()", got)
        if is_traceable_wrapper_subclass(value):
            expected = "plain tensors (of DTensors full_tensor()) in layers of Octofold's"
            raise invalid_argument(_NAME, "model", expected, f"{type(value).__name__} as '{name}'")
        if value.is_meta:
            expected = (
                "weights in memory (accelerate.hooks.remove_hook_from_submodules(model) brings "
                "back what is offloaded)"
            )
            raise invalid_argument(_NAME, "model", expected, f"'{name}' on meta")
    return state


def _same(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that have another one's memory, with the first name of that."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, value in state.items():
        if value.numel() > 0:
            where = value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
            known = first.setdefault(where, name)
            if known != name:
                same[name] = known
    return same


def _is_transformers(model: Module) -> bool:
    return any(
        one.__module__ == "transformers.modeling_utils" and one.__name__ == "PreTrainedModel"
        for one in type(model).__mro__
    )


def _why_no_family(
    model: Module, layers: Mapping[str, Module], records: Mapping[str, Record]
) -> str | None:
    """Why a model goes into no family that others read; None where it does."""
    if not _is_transformers(model):
        return "it is not a model of transformers"
    if getattr(model, "hf_quantizer", None) is not None:
        return "transformers has quantized it already"
    if getattr(model, "_hf_peft_config_loaded", False):
        return "it has adapters"
    every = [id(module) for _, module in model.named_modules(remove_duplicate=False)]
    for name, record in records.items():
        why = family.why_not(record, layers[name])
        if f"{name}.weight" in (getattr(model, "_keys_to_ignore_on_save", None) or ()):
            why = "transformers computes its weight, and does not save it"
        if why is None and every.count(id(layers[name])) > 1:
            why = "it stands in several places"
        if why is not None:
            return f"layer {name!r}: {why}"
    return None


def _in_family(
    state: Mapping[str, Tensor], layers: Mapping[str, Module], records: Mapping[str, Record]
) -> dict[str, Tensor]:
    written = dict(state)
    for name, layer in layers.items():
        record = records[name]
        weight = weight_of(layer)
        scale = written.pop(_joined(name, weight.scale_name()))
        if family.holds_codes(layer):
            written[_joined(name, "weight_scale")] = family.scale_in_file(record, scale)
        else:
            written[_joined(name, "weight")] = weight.dequantize()
    return written


def _write_family(
    model: Any, folder: Path, state: dict[str, Tensor], records: Mapping[str, Record], same: Any
) -> None:
    """By transformers, which knows about its config, ties and shards; under the modules' names, as
    the config has them."""
    in_codes = {
        name: record for name, record in records.items() if _joined(name, "weight_scale") in state
    }
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    for name in same.keys() & state.keys() - tied.keys() - set(tied.values()):
        state[name] = state[name].clone()  # transformers writes no others of one memory
    dtype = model.config.dtype
    architectures = model.config.architectures
    try:
        # save_pretrained() empties the state as it writes.
        with coded_state_dict(model):
            model.save_pretrained(folder, state_dict=state, save_original_format=False)
    finally:
        model.config.dtype, model.config.architectures = dtype, architectures
    if not in_codes:
        return
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["quantization_config"] = family.config_of(in_codes)
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_config(model: Any, folder: Path) -> None:
    """By the model's library, if it has one: what its class needs to be made again."""
    if callable(getattr(model, "save_config", None)):  # diffusers
        model.save_config(folder)
    elif _is_transformers(model):
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)


def _joined(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute
