"""Modules of another class with the same contents."""

from typing import TypeVar

from torch.nn import Module

AnyModule = TypeVar("AnyModule", bound=Module)


def with_state_of(module: Module, kind: type[AnyModule]) -> AnyModule:
    """A module of another class with all that one holds: parameters and hooks are the same ones."""
    twin = kind.__new__(kind)
    twin.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        twin.__dict__[name] = module.__dict__[name].copy()
    return twin
