"""Models from the folders that save() wrote."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.errors import BadFormatError, InvalidArgumentError, invalid_argument
from ..._core.ops import scale_shape
from ...nn.conversion.expert_blocks import convert_router
from ...nn.conversion.linear import replaced
from ..load_into import Slot, slots_of
from .folder import Records, read_records, read_tensors
from .records import (
    EXPERT_NAMES,
    EXPERTS,
    Record,
    experts_of,
    fill,
    recipe_of_record,
    record_of,
    router_beside,
    weight_of,
    why_no_experts,
    why_not,
)

_NAME: Final = "octofold.models.load"
_NAMED_AT_MOST: Final = 5


@torch.no_grad()
def load(model: Module | type[Module], folder: str | os.PathLike[str]) -> Any:
    """Load a model with layers in FP8 from a folder that octofold.models.save() wrote.

    model: a class of transformers (AutoModel… too) or Diffusers, which is made by the folder's
        config.json, in evaluation mode; or a model with the names and shapes of the saved one, as
        its class makes it. Such a model is changed in place. It may be on a GPU, and its parameters
        get the dtypes that were saved.
    folder: the folder of save().

    All numbers are those that were saved, to the bit. So are codes and scales, except for
    embeddings and convolutions in a family's checkpoint, which holds their numbers: a row may get
    twice the codes with half the scale. What state_dict() leaves out is as the class makes it.
    Returns the model.
    Raises InvalidArgumentError, which names what does not fit, BadFormatError for damaged files,
    and IoError. The model is then as it was.
    """
    path, records = read_records(_NAME, folder)
    if isinstance(model, Module):
        made = model
    elif isinstance(model, type):
        made = _made(model, path)
    else:
        expected = "a torch.nn.Module or its class"
        raise invalid_argument(_NAME, "model", expected, type(model).__qualname__)
    loading = _Loading(made, records, read_tensors(path), path)
    layers, tensors = loading.layers(), loading.tensors()
    loading.require_all_used()
    new = {id(module): values.made(module) for module, values in layers}
    for slot, tensor in tensors:
        _fill(slot, tensor)
    for name, record in records.layers.items():
        if record["kind"] == EXPERTS and record["router"]:
            convert_router(router_beside(made, name))
    return replaced(made, {key: layer for key, layer in new.items() if id(layer) != key})


def _made(kind: Any, folder: Path) -> Module:
    """A model of this class by the config in the folder."""
    if callable(getattr(kind, "load_config", None)):  # diffusers
        model: Module = kind.from_config(kind.load_config(folder))
        return model.eval()
    if callable(getattr(kind, "from_pretrained", None)) and (folder / "config.json").is_file():
        import transformers

        config_class = getattr(kind, "config_class", None) or transformers.AutoConfig
        config = config_class.from_pretrained(folder)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        make = getattr(kind, "from_config", None) or kind._from_config
        # In FP32, as from_pretrained() has what is computed and not in files: sines of positions.
        dtype = config.dtype
        model = make(config, dtype=torch.float32)
        model.config.dtype = dtype
        for name in _computed(model) & dict(model.named_parameters()).keys():
            parameter: Any = model.get_parameter(name)
            parameter.data = parameter.to(dtype or torch.float32)
        if (folder / "generation_config.json").is_file():
            generation: Any = model
            generation.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        return model.eval()
    expected = "a model, or a class of transformers or Diffusers whose config.json is in the folder"
    raise invalid_argument(_NAME, "model", expected, getattr(kind, "__qualname__", kind))


@dataclass
class _Values:
    """The values that a layer gets."""

    record: Record
    codes: Tensor
    scale: Tensor
    bias: Tensor | None
    device: torch.device

    def made(self, module: Module) -> Module:
        """The module itself, with another weight."""
        fill(self.record, module, self.codes, self.scale, self.bias)
        return module.to(self.device)


@dataclass
class _Stacks:
    """The values that experts get."""

    record: Record
    tensors: dict[str, Tensor]
    device: torch.device

    def made(self, module: Module) -> Module:
        """The experts in the place of a module."""
        recipe = recipe_of_record(self.record)
        return experts_of(self.record, recipe, self.tensors, module.training).to(self.device)


class _Loading:
    """A folder's tensors, and where in a model they belong."""

    def __init__(
        self, model: Module, records: Records, found: dict[str, Tensor], folder: Path
    ) -> None:
        self.model, self.records, self.found, self.folder = model, records, found, folder
        self.used: set[str] = set()
        self.known: dict[str, list[str]] = {}
        for alias, name in records.same.items():
            group = self.known.setdefault(name, [name])
            group.append(alias)
            self.known[alias] = group

    def layers(self) -> list[tuple[Module, "_Values | _Stacks"]]:
        """Modules that become layers in FP8, and with what."""
        modules = dict(self.model.named_modules())
        for name, module in modules.items():
            if record_of(module) is not None:
                expected = "a model as its class makes it"
                raise _wrong("model", expected, f"{type(module).__qualname__} at {name!r}")
        found: list[tuple[Module, _Values | _Stacks]] = []
        for name, record in self.records.layers.items():
            module = modules.get(name)
            if module is None:
                raise _wrong("model", f"a layer {name!r}, as was saved", "none")
            is_stacks = record["kind"] == EXPERTS
            stacks = self._stacks(name, record, module) if is_stacks else None
            got = (
                why_not(record, module)
                if stacks is None
                else why_no_experts(record, module, stacks.tensors)
            )
            if got:
                raise _wrong("model", f"a layer at {name!r} that can be {record['kind']}", got)
            found.append((module, stacks or self._values(name, record, module)))
        return found

    def _stacks(self, name: str, record: Record, module: Any) -> _Stacks:
        keys = {own: f"{name}.{own}" if name else own for own in EXPERT_NAMES}
        tensors = {own: self.found[key] for own, key in keys.items() if key in self.found}
        self.used.update(keys[own] for own in tensors)
        tensor = next(iter(module.parameters()), torch.empty(0))
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        return _Stacks(record, tensors, device)

    def _values(self, name: str, record: Record, module: Any) -> _Values:
        dot = f"{name}." if name else ""
        weight = self.take([f"{dot}weight"], tuple(module.weight.shape))
        scale = None
        for key in (f"{dot}weight_scale", f"{dot}weight_scale_inv"):
            if key in self.found:
                scale = self.found[key]
                self.used.add(key)
        codes, scale = weight_of(record, weight, scale)
        rows = weight.shape[0]
        shape = scale_shape(record["granularity"], rows, weight.numel() // max(rows, 1))
        if codes.element_size() != 1 or scale.numel() != torch.Size(shape).numel():
            expected = f"FP8 with {record['granularity']} scales {list(shape)}"
            got = f"{codes.dtype} with {list(scale.shape)}"
            raise BadFormatError(
                f"{self.folder}: tensor '{dot}weight': expected {expected}, got {got}"
            )
        own = module.bias if getattr(module, "bias", None) is not None else None
        bias = None if own is None else self.take([f"{dot}bias"], tuple(own.shape))
        device = module.weight.device
        device = torch.device("cpu") if device.type == "meta" else device
        return _Values(record, codes, scale.reshape(shape), bias, device)

    def tensors(self) -> list[tuple[Slot, Tensor]]:
        """Parameters and buffers of all else, and what they get."""
        theirs = {
            f"{name}.{part}" if name else part
            for name in self.records.layers
            for part in ("weight", "bias", *EXPERT_NAMES)
        }
        computed = _computed(self.model) - self.found.keys()
        return [
            (slot, self.take(slot.names, tuple(slot.tensor.shape)))
            for slot in slots_of(self.model)
            if theirs.isdisjoint(slot.names) and not computed.issuperset(slot.names)
        ]

    def take(self, names: list[str], shape: tuple[int, ...]) -> Tensor:
        """The tensor of one of these names, or one that was the same."""
        every = [other for name in names for other in self.known.get(name, [name])]
        here = [name for name in every if name in self.found]
        if not here:
            raise _wrong("model", "the names of the model that was saved", f"one with '{names[0]}'")
        tensor = self.found[here[0]]
        if tuple(tensor.shape) != shape:
            expected = f"'{names[0]}' of {list(tensor.shape)}, as was saved"
            raise _wrong("model", expected, list(shape))
        self.used.update(here)
        return tensor

    def require_all_used(self) -> None:
        """Checks that the model has a place for everything."""
        others = [name for name in self.found if name not in self.used]
        if others:
            more = len(others) - _NAMED_AT_MOST
            listed = ", ".join(others[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
            raise _wrong("model", "the names of the model that was saved", f"one without {listed}")


def _computed(model: Any) -> set[str]:
    """Names of parameters that a class of transformers computes, and so does not save."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def _wrong(argument: str, expected: str, got: object) -> InvalidArgumentError:
    return invalid_argument(_NAME, argument, expected, got)


def _fill(slot: Slot, value: Tensor) -> None:
    """In place where the dtype is the same, else in all of its places."""
    own = slot.tensor
    if not own.is_meta and own.dtype == value.dtype:
        own.copy_(value)
        return
    value = value.to("cpu" if own.is_meta else own.device)
    if isinstance(own, Parameter):
        value = Parameter(value, own.requires_grad)
    for place in slot.places:
        place.put(value)
