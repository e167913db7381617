"""The patching of transformers' modules: which of them a conversion takes, and the classes that it
gives them, which compute by other kernels."""

from collections.abc import Callable
from typing import Any

from torch.nn import Module

from ..._core.errors import invalid_argument
from .picking import ModuleFilter, require_model


def is_of_transformers(module: Module) -> bool:
    """True if the module's class is one of transformers'."""
    return type(module).__module__.startswith("transformers.")


def pick_parts(
    name: str,
    model: Module,
    module_filter_fn: ModuleFilter | None,
    *,
    called: str,
    fused: type[Module],
    is_one: Callable[[Module], bool],
    is_plain: Callable[[Module], bool],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The modules to convert, and why others of their kind are left alone, by their names.

    name: of the conversion, for errors. model, module_filter_fn: as it was given them.
    called: what it takes, in words. fused: the class that converted ones have in front.
    is_one, is_plain: whether a module is of this kind, and whether it computes what is known.

    Raises InvalidArgumentError, which names the argument: for no model, no filter, or nothing to
    convert.
    """
    require_model(name, model, module_filter_fn)
    picked: dict[str, Any] = {}
    left_alone: dict[str, str] = {}
    for fqn, module in model.named_modules():
        if isinstance(module, fused):
            left_alone[fqn] = "it is converted already"
        elif not is_of_transformers(module) or not is_one(module):
            continue
        elif "forward" in module.__dict__ or not is_plain(module):
            left_alone[fqn] = f"{type(module).__name__} may compute something else"
        elif module_filter_fn is not None and not module_filter_fn(module, fqn):
            left_alone[fqn] = "module_filter_fn does not pick it"
        else:
            picked[fqn] = module
    if not picked:
        argument = "model" if module_filter_fn is None else "module_filter_fn"
        expected = called if module_filter_fn is None else f"to pick {called}"
        got = f"{type(model).__qualname__} with {'; '.join(left_alone.values()) or 'none'}"
        raise invalid_argument(name, argument, expected, got)
    return picked, left_alone


def in_front_of(maker: Callable[[Any], Any], kind: Any, *fronts: Any, **members: Any) -> Any:
    """The class that maker(kind) returns: `kind` with `fronts` before it. What looks for the class
    that it was finds it. pickle, which finds classes by their names, gets the maker and the kind,
    and so torch.save() and processes that are spawned can have the module."""
    members |= {"__module__": kind.__module__, "_made_by": (maker, kind), "__reduce_ex__": _reduce}
    return type(kind.__name__, (*fronts, kind), members)


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(module, max(int(protocol), 2))
    makers, kind = [], type(module)
    while "_made_by" in kind.__dict__:
        maker, kind = kind.__dict__["_made_by"]
        makers.append(maker)
    return _blank, (kind, *reversed(makers)), *reduced[2:]


def _blank(kind: Any, *makers: Callable[[Any], Any]) -> Any:
    """For copies and files, which fill it."""
    for maker in makers:
        kind = maker(kind)
    return kind.__new__(kind)
