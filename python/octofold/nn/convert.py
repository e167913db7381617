"""Models to FP8 layers, and back."""

from collections.abc import Callable, Container, Iterator, Sized
from typing import Final, TypeAlias

import torch
from torch.nn import Module

from ..errors import invalid_argument
from .linear import Linear
from .mlp import MLP
from .norm_linear import NormLinear
from .recipes import Recipe, recipe_of

_NAME: Final = "octofold.nn.convert"

ModuleFilter: TypeAlias = Callable[[Module, str], bool]
"""(module, its fully qualified name) → whether to convert it."""


def convert(
    model: Module,
    recipe: Recipe | str = "blockwise",
    module_filter_fn: ModuleFilter | None = None,
    *,
    main_grad: bool = False,
    force_fp8: bool = False,
) -> Module:
    """Make each torch.nn.Linear of a model an octofold.nn.Linear with the same parameters.

    model: changed in place; if it is a torch.nn.Linear itself, left as it is.
    recipe, main_grad, force_fp8: as of octofold.nn.Linear.
    module_filter_fn: (module, fully qualified name) → whether to convert it, as torchao's: asked
        for each linear layer; None: all. A model's last layer is often left out:
        `lambda module, fqn: fqn != "lm_head"`.

    Subclasses of torch.nn.Linear are left alone, as they may compute something else, and so are the
    layers of octofold.nn.MLP and NormLinear. A layer that
    stands in several places is asked for once, by the first of its names, and stays one layer.
    Convert before fully_shard() and torch.compile, and make the optimizer before or after: it sees
    the same parameters. restore() is the way back.

    Returns the model; of a torch.nn.Linear the new layer.
    Raises InvalidArgumentError that names the argument: for a filter that picks no layer, for
    layers picked that are octofold.nn.Linear already. The model is then as it was.
    """
    recipe = recipe_of(_NAME, recipe)
    require_model(_NAME, model, module_filter_fn)
    fused = {
        id(part)
        for module in model.modules()
        if isinstance(module, MLP | NormLinear)
        for part in module.modules()
        if isinstance(part, Linear)
    }
    new: dict[int, Module] = {}
    for name, module in picked(model, module_filter_fn, (Linear,), fused):
        if isinstance(module, Linear):
            expected = "linear layers that are not converted yet (octofold.nn.restore() undoes it)"
            raise invalid_argument(_NAME, "model", expected, f"octofold.nn.Linear at {name!r}")
        layer = Linear.from_linear(module, recipe, main_grad=main_grad, force_fp8=force_fp8)
        new[id(module)] = layer
    require_some(_NAME, model, module_filter_fn, new)
    return replaced(model, new)


def restore(model: Module) -> Module:
    """Undo convert(): each octofold.nn.Linear becomes a torch.nn.Linear with the same parameters,
    in place. Returns the model; of an octofold.nn.Linear the new layer. A model that has none is
    returned as it is.
    """
    if not isinstance(model, Module):
        got = type(model).__qualname__
        raise invalid_argument("octofold.nn.restore", "model", "a torch.nn.Module", got)
    new: dict[int, Module] = {
        id(module): module.to_linear() for module in model.modules() if isinstance(module, Linear)
    }
    return replaced(model, new)


def replaced(model: Module, new: dict[int, Module]) -> Module:
    """The model with some modules, by their identities, replaced wherever they stand."""
    for parent in list(model.modules()):
        # Not named_children(), which names a module that stands there twice only once.
        for name, child in list(parent._modules.items()):
            if id(child) in new:
                setattr(parent, name, new[id(child)])
    return new.get(id(model), model)


def require_model(operation: str, model: object, module_filter_fn: object) -> None:
    """That these are a module and a ModuleFilter, or None."""
    if not isinstance(model, Module):
        raise invalid_argument(operation, "model", "a torch.nn.Module", type(model).__qualname__)
    if module_filter_fn is not None and not callable(module_filter_fn):
        expected = "a function (module, fqn) -> bool, or None"
        raise invalid_argument(operation, "module_filter_fn", expected, repr(module_filter_fn))


def picked(
    model: Module,
    module_filter_fn: ModuleFilter | None,
    others: tuple[type[torch.nn.Linear], ...] = (),
    but: Container[int] = (),
) -> Iterator[tuple[str, torch.nn.Linear]]:
    """Each torch.nn.Linear that the filter picks, and modules of `others`, with their names; `but`
    those of these identities."""
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear and not isinstance(module, others):
            continue
        if id(module) not in but and (module_filter_fn is None or module_filter_fn(module, name)):
            yield name, module


def require_some(
    operation: str, model: Module, module_filter_fn: ModuleFilter | None, found: Sized
) -> None:
    """That there is a layer to convert."""
    if len(found) == 0:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        expected = "a torch.nn.Linear" if module_filter_fn is None else "to pick a torch.nn.Linear"
        count = sum(type(module) is torch.nn.Linear for module in model.modules())
        got = f"{type(model).__qualname__} with {count} of them"
        raise invalid_argument(operation, argument, expected, got)
