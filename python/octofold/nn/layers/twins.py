"""Modules of another class with the same contents."""

from typing import TypeVar

from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from ..._core.errors import invalid_argument

AnyModule = TypeVar("AnyModule", bound=Module)


def with_state_of(operation: str, module: Module, kind: type[AnyModule]) -> AnyModule:
    """A module of another class with all that one holds: parameters and hooks are the same ones.
    Raises InvalidArgumentError for a module that torch has parametrized, whose weight is a property
    of the class that parametrizing made."""
    if is_parametrized(module):
        expected = "a layer that is not parametrized (remove_parametrizations() first)"
        computed = module.get_submodule("parametrizations").named_children()
        got = f"one that computes its {', '.join(name for name, _ in computed)}"
        raise invalid_argument(operation, "self", expected, got)
    twin = kind.__new__(kind)
    twin.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        twin.__dict__[name] = module.__dict__[name].copy()
    return twin
