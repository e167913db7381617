"""Modules that move some of their buffers but do not convert them, and check what they load; and
modules of another class with the same contents."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from ..._core.errors import invalid_argument
from ..autograd.fitting import is_fp8
from ..casting.weight_tensors import without_wrapping, wrapped_as


class KeepsBuffers(Module):
    """The part of a module by which to(), half() and the like move its buffers and keep their
    dtypes and values, and by which load_state_dict() refuses what does not fit with a reason.

    A class says which buffers these are (_held_buffers) and what is wrong with a state_dict()
    (_objection).
    """

    def _held_buffers(self) -> dict[str, Tensor | None]:
        """The buffers that are moved and not converted, by name: by default all of them."""
        return dict(self._buffers)

    def _objection(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """An error message that says what is wrong with this state; None if nothing is."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        # pickle reads no FP8 of torch's: codes travel as bytes, beside their dtype.
        codes = {name: b.dtype for name, b in self._buffers.items() if b is not None and is_fp8(b)}
        coded = {name: self._buffers[name].view(torch.uint8) for name in codes}  # type: ignore[union-attr]
        return {**self.__dict__, "_buffers": {**self._buffers, **coded}, "_codes": codes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        codes = state.pop("_codes")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for name, dtype in codes.items():
            self._buffers[name] = self._buffers[name].view(dtype)  # type: ignore[union-attr]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        held = self._held_buffers()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_dtypes(self, held)
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in () if keep_vars else self._parameters:
            value = destination.get(prefix + name)
            if value is not None:
                destination[prefix + name] = without_wrapping(value)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        objection = self._objection(state_dict, prefix)
        if objection is not None:
            error_messages: list[str] = arguments[-1]
            error_messages.append(objection)
            return
        if arguments[0].get("assign_to_params_buffers", False):
            wrapped = {
                prefix + name: wrapped_as(parameter, state_dict[prefix + name])
                for name, parameter in self._parameters.items()
                if prefix + name in state_dict
            }
            state_dict = {**state_dict, **wrapped}
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def keep_dtypes(module: Module, before: dict[str, Tensor | None]) -> None:
    """After Module._apply(): give the buffers that these were `before`, and that it has converted,
    their dtypes and values back, where they are now."""
    for name, buffer in before.items():
        now = module._buffers[name]
        if now is not None and buffer is not None and now.dtype != buffer.dtype:
            module._buffers[name] = buffer.to(now.device)


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
