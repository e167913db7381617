"""Picks the layers of a model that are converted, says why others are left alone, and reports layer
by layer what became of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

import torch
from torch.nn import Module

from ..._core.errors import invalid_argument, listed, require_type
from ..layers.conv1d import is_conv1d
from ..layers.fp8_parameters import held
from ..layers.patching import PATCHES, misfit, put_in_front
from .weight_readers import names_of, weight_readers

_WHAT: Final = "the report of a conversion, which changed the model in place (.model is it)"


@dataclass(frozen=True, repr=False)
class Conversion:
    """The report of octofold.nn.convert(), convert_weight_only() and convert_experts(). As text it
    counts what became of the layers, with some of their names.

    model: the model, changed in place; for a layer that was given alone, the new one.
    converted: by the layer's name, what it is now.
    left_alone: by the layer's name, why it is as it was.
    """

    model: Module
    converted: Mapping[str, str]
    left_alone: Mapping[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"this is {_WHAT}, not a module: call the model")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"'Conversion' object has no attribute {name!r}: it is {_WHAT}")

    def __repr__(self) -> str:
        lines = [
            f"{type(self.model).__qualname__}: {len(self.converted)} converted, "
            f"{len(self.left_alone)} left alone"
        ]
        lines += [f"  converted: {line}" for line in grouped(self.converted)]
        lines += [f"  left alone: {line}" for line in grouped(self.left_alone)]
        return "\n".join(lines)


def grouped(layers: Mapping[str, str]) -> Iterator[str]:
    """Names of layers by what is said of them: a line for each text, the commonest first."""
    names: dict[str, list[str]] = {}
    for name, text in layers.items():
        names.setdefault(text, []).append(name or "the layer itself")
    for text, some in sorted(names.items(), key=lambda entry: -len(entry[1])):
        yield f"{len(some)}, {text}: {listed(some, 3)}"


ModuleFilter: TypeAlias = Callable[[Module, str], bool]
"""(module, its fully qualified name) → whether to convert it."""

_HEAD: Final = "lm_head"
_ADAPTER: Final = "lora_"


@dataclass(frozen=True)
class Picked:
    """layers: by name, those to convert: torch.nn.Linear, and transformers' Conv1D. left_alone: by
    name, why others are not."""

    layers: dict[str, Any] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)


def require_model(operation: str, model: object, module_filter_fn: object) -> None:
    """Raises InvalidArgumentError unless there is a model, and a filter or None."""
    require_type(operation, "model", model, Module, "a torch.nn.Module")
    if module_filter_fn is not None and not callable(module_filter_fn):
        expected = "a function (module, fqn) -> bool, or None"
        raise invalid_argument(operation, "module_filter_fn", expected, repr(module_filter_fn))


def pick(
    operation: str,
    model: Module,
    module_filter_fn: ModuleFilter | None,
    converted: tuple[type[Module], ...] = (),
    but: Mapping[int, str] | None = None,
) -> Picked:
    """The linear layers of a model. What cannot be converted is left alone, whatever the filter
    says; without a filter output heads and adapters too.

    converted: classes of layers that are converted already: an error if the filter picks one.
    but: by identity, layers that are left alone for these reasons.
    Raises InvalidArgumentError that names the argument, also where nothing is picked.
    """
    require_model(operation, model, module_filter_fn)
    picked = Picked()
    reasons = weight_readers(model) | dict(but or {})
    by_default = {} if module_filter_fn is not None else {**_adapters(model), **_heads(model)}
    for name, module in model.named_modules():
        if not (isinstance(module, torch.nn.Linear) or is_conv1d(module)):
            continue
        reason = reasons.get(id(module)) or by_default.get(id(module))
        if reason is None and not isinstance(module, converted):
            reason = objection(module)
        if reason is None and module_filter_fn is not None and not module_filter_fn(module, name):
            reason = "module_filter_fn does not pick it"
        if reason is not None:
            picked.left_alone[name] = reason
        elif isinstance(module, converted):
            expected = "linear layers that are not converted yet (octofold.nn.restore() undoes it)"
            got = f"octofold.nn.{type(module).__name__} at {name!r}"
            raise invalid_argument(operation, "model", expected, got)
        else:
            picked.layers[name] = module
    if not picked.layers:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        expected = "a torch.nn.Linear that can be converted"
        expected = expected if module_filter_fn is None else f"to pick {expected}"
        lines = "; ".join(grouped(picked.left_alone)) or "no torch.nn.Linear"
        got = f"{type(model).__qualname__} with {lines}"
        raise invalid_argument(operation, argument, expected, got)
    return picked


def objection(layer: Module) -> str | None:
    """Why a linear layer itself cannot be converted."""
    kind = type(layer)
    if kind is not torch.nn.Linear and not is_conv1d(layer):
        if torch.nn.utils.parametrize.is_parametrized(layer):
            return "torch parametrizes its weight"
        if isinstance(layer, torch.nn.LazyLinear):
            return "its sizes are not known before the model has run once"
        return f"it is a {kind.__qualname__}, which may compute something else"
    if layer._parameters.get("weight") is None:
        return "its weight is no parameter of its own (as after the older weight_norm)"
    if held(layer) is not None:
        return "its weight is an Fp8Weight already"
    if "forward" in layer.__dict__:
        return "its forward was replaced (as by accelerate), which another layer would lose"
    return None


def _heads(model: Module) -> dict[int, str]:
    """Output heads: what a model of transformers names so, what is named so, and what shares its
    weight with an embedding."""
    heads: dict[int, str] = {}
    embeddings = {
        id(module.weight): name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
    }
    for name, module in model.named_modules():
        get_head = getattr(module, "get_output_embeddings", None)
        if callable(get_head):
            try:
                head = get_head()
            except (AttributeError, NotImplementedError):
                head = None
            if isinstance(head, Module):
                heads[id(head)] = "it is the output head"
        if isinstance(module, torch.nn.Linear):
            tied = embeddings.get(id(module._parameters.get("weight")))
            if tied is not None:
                heads[id(module)] = f"its weight is tied to that of {tied}"
            elif name.rpartition(".")[2] == _HEAD:
                heads[id(module)] = "it is the output head"
    return heads


def _adapters(model: Module) -> dict[int, str]:
    """Adapters of PEFT, which are small and trained: by what its layers say of themselves."""
    adapters: dict[int, str] = {}
    for module in model.modules():
        own = names_of(module, "adapter_layer_names") + names_of(module, "other_param_names")
        for name, child in module.named_children():
            if name in own or name.startswith(_ADAPTER):
                adapters |= {id(part): "it is an adapter" for part in child.modules()}
    return adapters


def is_of_transformers(module: Module) -> bool:
    """True if the module's class is one of transformers'."""
    return type(module).__module__.startswith("transformers.")


def convert_parts(
    name: str,
    model: Module,
    module_filter_fn: ModuleFilter | None,
    *,
    patch: str,
    front: type[Module],
    is_one: Callable[[Module], bool],
    is_plain: Callable[[Module], bool],
) -> Conversion:
    """A conversion by a row of PATCHES, which puts a class in front of modules' own.

    name: of the conversion, for errors. model, module_filter_fn: as it was given them.
    is_one, is_plain: whether a module is of this kind, and whether it computes what is known.

    Raises InvalidArgumentError, which names the argument: for no model, no filter, or nothing to
    convert.
    """
    require_model(name, model, module_filter_fn)
    picked: dict[str, Any] = {}
    left_alone: dict[str, str] = {}
    for fqn, module in model.named_modules():
        if isinstance(module, front):
            left_alone[fqn] = "it is converted already"
        elif not is_of_transformers(module) or not is_one(module):
            continue
        elif "forward" in module.__dict__ or not is_plain(module):
            left_alone[fqn] = misfit(patch, f"{type(module).__name__} may compute something else")
        elif module_filter_fn is not None and not module_filter_fn(module, fqn):
            left_alone[fqn] = "module_filter_fn does not pick it"
        else:
            picked[fqn] = module
    if not picked:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        library, called, _ = PATCHES[patch]
        expected = f"{'' if module_filter_fn is None else 'to pick '}{called} (of {library})"
        got = f"{type(model).__qualname__} with {'; '.join(left_alone.values()) or 'none'}"
        raise invalid_argument(name, argument, expected, got)
    for module in picked.values():
        put_in_front(patch, module, front)
    return Conversion(model, dict.fromkeys(picked, PATCHES[patch][2]), left_alone)
