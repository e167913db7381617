"""Applying a plan to a model."""

import warnings
from typing import Final

import torch
from torch.nn import Module

from ..._core.errors import InvalidArgumentError, UnsupportedError, invalid_argument
from ...nn.conversion.linear import replaced
from .data import Layer, Plan
from .files import device_of, fingerprint, machine_of
from .record import WIDE, dtype_name, linears_of
from .ways import WAYS, Use, Way

_NAME: Final = "octofold.models.apply"


@torch.no_grad()
def apply(model: Module, plan: Plan, *, strict: bool = True) -> Module:
    """Make the layers of a model what a plan says, in place, all or none.

    model: on the GPU (or the CPU) on which the plan was measured, with the names, shapes and dtypes
        that it had then; its values may differ. A torch.nn.Linear itself is left as it is, and the
        new layer is returned.
    strict: False: another GPU, or other layers beside those that the plan changes, are a warning.
        Layers that are missing, have other shapes, or cannot be run so here remain errors.

    The layers are for inference: they have no gradient by the weight, and those of FP8 products
    have none at all. There is no way back, because what the cast rounds away is gone: keep the
    checkpoint. While this runs, memory holds the old and the new weights.
    Returns the model.
    Raises InvalidArgumentError, which says what does not fit, and UnsupportedError where this GPU
    cannot run a layer so; the model is then as it was.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    if not isinstance(plan, Plan):
        raise invalid_argument(_NAME, "plan", "a Plan of advise()", type(plan).__qualname__)
    device = device_of(_NAME, model)
    _require_same(model, plan, device, strict)
    linears, alone = linears_of(model)
    new: dict[int, Module] = {}
    for layer in plan.changed:
        linear = _linear_of(layer, linears, alone)
        way = _way_of(layer)
        dtypes = frozenset(WIDE[calls.dtype] for calls in layer.calls)
        why_not = way.why_not(Use(device, dtypes))
        if why_not is not None:
            raise UnsupportedError(f"{_NAME}: argument 'plan': layer {layer.name!r}: {why_not}")
        new[id(linear)] = way.make(linear)
    return replaced(model, new)


def _require_same(model: Module, plan: Plan, device: torch.device, strict: bool) -> None:
    problems: list[tuple[str, object]] = []
    here = machine_of(device)
    if here != plan.machine:
        expected = f"one that was measured on the model's device, {here}"
        problems.append((expected, f"one of {plan.machine}"))
    if fingerprint(model) != plan.fingerprint:
        expected = "one for a model with the names, shapes and dtypes of this one"
        problems.append((expected, f"one for a {plan.model} {_difference(model, plan)}"))
    for expected, got in problems:
        error = invalid_argument(_NAME, "plan", expected, got)
        if strict:
            raise InvalidArgumentError(f"{error} (strict=False: a warning)")
        warnings.warn(str(error), stacklevel=4)


def _difference(model: Module, plan: Plan) -> str:
    """In what the model is another than the plan's, for people."""
    modules = dict(model.named_modules())
    for layer in plan.layers:
        module = modules.get(layer.name)
        if module is None:
            return f"with a layer {layer.name!r}"
        if not isinstance(module, torch.nn.Linear):
            return f"whose {layer.name!r} is a torch.nn.Linear, no {type(module).__qualname__}"
        theirs = layer.in_features, layer.out_features, layer.dtype
        held_as = getattr(module.weight, "codes", module.weight).dtype
        ours = module.in_features, module.out_features, dtype_name(held_as)
        if theirs != ours:
            words = f"{theirs[0]} to {theirs[1]} features in {theirs[2]}"
            return f"whose {layer.name!r} is of {words}"
    return "with the same linear layers, but other parameters or buffers"


def _way_of(layer: Layer) -> Way:
    if layer.chosen not in WAYS or any(calls.dtype not in WIDE for calls in layer.calls):
        expected = f"one whose layer {layer.name!r} has a way and dtypes that there are"
        got = f"{layer.chosen!r} and {[calls.dtype for calls in layer.calls]}"
        raise invalid_argument(_NAME, "plan", expected, got)
    return WAYS[layer.chosen]


def _linear_of(
    layer: Layer, linears: dict[str, torch.nn.Linear], alone: dict[str, str]
) -> torch.nn.Linear:
    linear = linears.get(layer.name)
    if linear is None:
        got = alone.get(layer.name, "none there")
        expected = f"one whose layer {layer.name!r} is a torch.nn.Linear of the model"
        raise invalid_argument(_NAME, "plan", expected, got)
    theirs, ours = (
        (layer.in_features, layer.out_features),
        (linear.in_features, linear.out_features),
    )
    if theirs != ours:
        expected = f"one whose layer {layer.name!r} is of {ours[0]} to {ours[1]} features"
        raise invalid_argument(_NAME, "plan", expected, f"{theirs[0]} to {theirs[1]}")
    return linear
