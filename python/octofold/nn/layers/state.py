"""Layers whose weights are wrapped, and what state_dict() has of them; and modules of another class
with the same contents."""

from typing import Any, TypeVar

from torch.nn import Module
from torch.nn.utils.parametrize import is_parametrized

from ..._core.errors import invalid_argument
from ..autograd.fitting import is_fp8, local_part
from ..casting.fp8_weight import Fp8Weight
from ..casting.weight_tensors import without_wrapping, wrapped_as


class PlainState(Module):
    """The part of a layer by which state_dict() has plain tensors in place of WrappedWeights, and
    load_state_dict() wraps them again, and refuses FP8 codes that are no octofold.nn.Fp8Weight's.
    """

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
        errors: list[str] = arguments[-1]
        for name, own in self._parameters.items():
            codes = state_dict.get(f"{prefix}{name}")
            if is_fp8(codes) and not isinstance(local_part(own), Fp8Weight):
                errors.append(
                    f"octofold.nn.{type(self).__name__}: '{prefix}{name}': expected bfloat16, "
                    f"float16 or float32, got {codes.dtype}: FP8 weights with their scales are for "
                    "octofold.nn.Fp8Weight"
                )
                return
        if arguments[0].get("assign_to_params_buffers", False):
            wrapped = {
                prefix + name: wrapped_as(parameter, state_dict[prefix + name])
                for name, parameter in self._parameters.items()
                if prefix + name in state_dict
            }
            state_dict = {**state_dict, **wrapped}
        super()._load_from_state_dict(state_dict, prefix, *arguments)


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
