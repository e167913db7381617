"""Models from the folders that save() wrote."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import BadFormatError, InvalidArgumentError, invalid_argument, listed
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
    layer_of,
    record_of,
    router_beside,
    weight_of,
    why_no_experts,
    why_not,
)

_NAME: Final = "octofold.models.load"


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
    new = {key: make() for key, make in layers.items()}
    for slot, tensor in tensors:
        slot.fill(tensor)
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

    def layers(self) -> dict[int, Callable[[], Module]]:
        """Makers of the layers in FP8, by the modules in whose place they are to stand."""
        modules = dict(self.model.named_modules())
        for name, module in modules.items():
            if record_of(module) is not None:
                expected = "a model as its class makes it"
                raise _wrong("model", expected, f"{type(module).__qualname__} at {name!r}")
        makers: dict[int, Callable[[], Module]] = {}
        for name, record in self.records.layers.items():
            if (found := modules.get(name)) is None:
                raise _wrong("model", f"a layer {name!r}, as was saved", "none")
            is_stacks = record["kind"] == EXPERTS
            stacks = self._stacks(name) if is_stacks else {}
            got = why_no_experts(record, found, stacks) if is_stacks else why_not(record, found)
            if got:
                raise _wrong("model", f"a layer at {name!r} that can be {record['kind']}", got)
            if is_stacks:
                home = _home(next(found.parameters(), None))
                makers[id(found)] = partial(experts_of, record, stacks, found.training, home)
            else:
                values = self._values(name, record, found)
                makers[id(found)] = partial(layer_of, record, found, *values, _home(found.weight))
        return makers

    def _stacks(self, name: str) -> dict[str, Tensor]:
        keys = {own: f"{name}.{own}" if name else own for own in EXPERT_NAMES}
        tensors = {own: self.found[key] for own, key in keys.items() if key in self.found}
        self.used.update(keys[own] for own in tensors)
        return tensors

    def _values(
        self, name: str, record: Record, module: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes, the scales and the bias of a layer."""
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
        return codes, scale.reshape(shape), bias

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
            got = f"one without {listed(others)}"
            raise _wrong("model", "the names of the model that was saved", got)


def _computed(model: Any) -> set[str]:
    """Names of parameters that a class of transformers computes, and so does not save."""
    return set(getattr(model, "_keys_to_ignore_on_save", None) or ())


def _home(tensor: Tensor | None) -> torch.device:
    """The device where a layer goes: a tensor's that it has, or the CPU."""
    return torch.device("cpu") if tensor is None or tensor.is_meta else tensor.device


def _wrong(argument: str, expected: str, got: object) -> InvalidArgumentError:
    return invalid_argument(_NAME, argument, expected, got)
