"""The selection of the layers of a model that are cast, and of those that are left alone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.library import note
from ...nn.casting.weight_tensors import is_plain_parameter
from ...nn.conversion.weight_readers import names_of, weight_readers, wide_patterns

SUPPORTED: Final = (
    torch.nn.Linear,
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
    torch.nn.Embedding,
)
"""The classes that Diffusers casts; subclasses count too."""
NAME: Final = "octofold.models.enable_layerwise_casting"
DEFAULT_PATTERNS: Final = ("pos_embed", "patch_embed", "norm", "^proj_in$", "^proj_out$")
"""Diffusers' own."""
BEFORE: Final = "before_casting"
"""The attribute of a layer whose weight has been cast."""

_WRAPPERS: Final = ("base_model.model.",)  # of peft, which models know nothing of


@dataclass
class Selection:
    """layers: by name, those to cast. skipped: how many were skipped as asked for. reasons: by
    name, why others are left alone."""

    layers: dict[str, Module] = field(default_factory=dict)
    skipped: int = 0
    reasons: dict[str, str] = field(default_factory=dict)


class Patterns:
    """Regular expressions that a name is searched for, and which of them were found."""

    def __init__(self, given: Any) -> None:
        """given: as enable_layerwise_casting() takes skip_modules_pattern."""
        argument = "skip_modules_pattern"
        self.are_default = given is None or (isinstance(given, str) and given == "auto")
        if self.are_default:
            texts: tuple[Any, ...] = DEFAULT_PATTERNS
        else:
            texts = (given,) if isinstance(given, str) else tuple_of(argument, given)
        self._expressions = []
        for text in texts:
            try:
                self._expressions.append(re.compile(text))
            except (re.error, TypeError) as error:
                expected = '"auto", None, a regular expression or a tuple of them'
                got = f"{text!r} ({error})"
                raise invalid_argument(NAME, argument, expected, got) from None
        self._found: set[str] = set()

    def fit(self, name: str, of_models: tuple[str, ...]) -> bool:
        """True if a module of this name is skipped; of_models: what models skip by themselves."""
        for wrapper in _WRAPPERS:
            name = name.removeprefix(wrapper)
        found = [one.pattern for one in self._expressions if one.search(name)]
        self._found.update(found)
        return bool(found) or any(re.search(pattern, name) for pattern in of_models)

    def require_use(self, module: Module) -> None:
        """Checks that a pattern that was given is good for something."""
        if self._expressions and not self.are_default and not self._found:
            expected = "patterns of which one is found in a name of a module"
            got = f"{', '.join(repr(one.pattern) for one in self._expressions)}, found in none of "
            raise invalid_argument(
                NAME, "skip_modules_pattern", expected, f"{got}{type(module).__qualname__}"
            )
        if not self.are_default:
            for one in self._expressions:
                if one.pattern not in self._found:
                    note(f"layerwise casting: pattern {one.pattern!r} is found in no name")


def select(module: Module, patterns: Patterns, classes: tuple[type[Module], ...]) -> Selection:
    """The layers to cast. Raises InvalidArgumentError, with nothing changed."""
    selection = Selection()
    elsewhere: dict[int, str] = {}
    readers = weight_readers(module)
    for name, layer in _walk(module, "", patterns, (), classes, selection, set()):
        reason = readers.get(id(layer)) or _why_not(layer)
        if reason is None:
            selection.layers[name] = layer
        else:
            selection.reasons[name] = reason
    chosen = {id(layer) for layer in selection.layers.values()}
    for name, other in module.named_modules():
        for tensor in other._parameters.values():
            if tensor is not None and id(other) not in chosen:
                elsewhere.setdefault(_address(tensor), name)
    _leave_tied(selection, elsewhere)
    patterns.require_use(module)
    for name, reason in selection.reasons.items():
        note(f"layerwise casting: {name or 'the module'} is left alone: {reason}")
    return selection


def tuple_of(argument: str, values: Any) -> tuple[Any, ...]:
    """A tuple, list or set as a tuple."""
    if not isinstance(values, tuple | list | set | frozenset):
        got = type(values).__qualname__
        raise invalid_argument(NAME, argument, "a tuple", got)
    return tuple(values)


def _walk(
    module: Module,
    name: str,
    patterns: Patterns,
    of_models: tuple[str, ...],
    classes: tuple[type[Module], ...],
    selection: Selection,
    seen: set[int],
) -> Iterator[tuple[str, Module]]:
    """Layers of the supported classes with their names, each once."""
    if id(module) in seen:
        return
    seen.add(id(module))
    if BEFORE in module.__dict__:
        expected = "a model without layerwise casting (disable_layerwise_casting() undoes it)"
        raise invalid_argument(NAME, "module", expected, f"casting enabled for {name!r}")
    if isinstance(module, classes) or patterns.fit(name, of_models):
        selection.skipped += 1
        return
    if isinstance(module, SUPPORTED):
        yield name, module
        return
    of_models += names_of(module, "_skip_layerwise_casting_patterns") + wide_patterns(module)
    adapters = names_of(module, "adapter_layer_names") + names_of(module, "other_param_names")
    for child_name, child in module.named_children():
        if child_name not in adapters:
            full_name = f"{name}.{child_name}" if name else child_name
            yield from _walk(child, full_name, patterns, of_models, classes, selection, seen)


def _why_not(layer: Module) -> str | None:
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is no parameter of its own"
    if not is_plain_parameter(weight):
        return f"its weight is {type(weight).__qualname__} of {weight.dtype}"
    if weight.numel() == 0:
        return "its weight is empty"
    if type(layer).__module__.startswith("octofold."):
        return f"it is {type(layer).__qualname__} of Octofold already"
    if "forward" in layer.__dict__ and "_old_forward" not in layer.__dict__:
        return "its forward was replaced"
    if isinstance(layer, torch.nn.Embedding) and layer.max_norm is not None:
        return "it changes its weight (max_norm)"
    return None


def _leave_tied(selection: Selection, elsewhere: dict[int, str]) -> None:
    """Takes out layers whose weight is another module's too."""
    owners: dict[int, list[str]] = {}
    for name, layer in selection.layers.items():
        weight = layer._parameters["weight"]
        assert weight is not None
        owners.setdefault(_address(weight), []).append(name)
    for address, names in owners.items():
        others = [elsewhere[address]] if address in elsewhere else []
        for name in names if len(names) + len(others) > 1 else ():
            other = next(one for one in (*names, *others) if one != name)
            selection.reasons[name] = f"its weight is tied to that of {other}"
            del selection.layers[name]


def _address(tensor: Tensor) -> int:
    """Equal for tensors in the same memory."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a subclass without memory of its own
        return id(tensor)
