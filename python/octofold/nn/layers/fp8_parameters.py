"""Layers of torch, or of anybody, whose parameter is an Fp8Weight."""

from typing import Any

from torch.nn import Module

from ..casting.fp8_weight import Fp8Weight
from .saving import wrap_writers


def hold(module: Module, weight: Fp8Weight, name: str = "weight") -> None:
    """Make the weight the module's parameter of this name, a frozen one, which repr() shows."""
    wrap_writers()
    parameter: Any = Fp8Weight(weight)
    module._parameters[name] = parameter
    module.extra_repr = _Description(module, name)  # type: ignore[method-assign]


def held(module: Module, name: str = "weight") -> Fp8Weight | None:
    """The parameter of this name, if it is such a weight."""
    weight = module._parameters.get(name)
    return weight if isinstance(weight, Fp8Weight) else None


class _Description:
    """extra_repr() of a module. A method would be pickled by a name that the module does not
    have."""

    def __init__(self, module: Module, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self) -> str:
        weight, text = held(self._module, self._name), type(self._module).extra_repr(self._module)
        return text if weight is None else f"{text}, {self._name}={weight}"
