"""transformers' Conv1D, a linear layer whose weight is stored as [in, out], in FP8."""

from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe, recipe_of
from ..autograd.fitting import require_input
from ..autograd.linear import linear
from ..recipes.choice import fp8_wins
from ..recipes.kernels import has_native
from .state import with_state_of

_NAME: Final = "octofold.nn.Conv1D"


class Conv1D(Module):
    """x · weight (+ bias) in FP8, with the parameters of a transformers.pytorch_utils.Conv1D (GPT-2
    and its relatives): weight [in, out], bias [out]. octofold.nn.convert() makes it.

    The weight is transposed in each forward, a copy that octofold.nn.Linear does without. There is
    no main_grad, and keep_casts() has no effect.

    forward: x [..., in] of bfloat16, float16 or float32 to [..., out], as octofold.linear().
    Raises InvalidArgumentError, which names the argument.
    """

    weight: Tensor
    bias: Tensor
    force_fp8: bool
    _recipe: Recipe
    _plain_class: type[Module]

    @classmethod
    def from_conv1d(
        cls, conv1d: Any, recipe: Recipe | str = "blockwise", *, force_fp8: bool = False
    ) -> Self:
        """A layer with the very parameters of a Conv1D, its hooks and its training mode. force_fp8:
        as of octofold.nn.Linear."""
        operation = f"{_NAME}.from_conv1d"
        recipe = recipe_of(operation, recipe)
        if not is_conv1d(conv1d):
            got = f"{type(conv1d).__module__}.{type(conv1d).__qualname__}"
            raise invalid_argument(operation, "conv1d", "a transformers Conv1D", got)
        layer = with_state_of(operation, conv1d, cls)
        layer._recipe, layer._plain_class = recipe, type(conv1d)
        layer.force_fp8 = force_fp8
        return layer

    def to_conv1d(self) -> Module:
        """The way back: a Conv1D with these very parameters."""
        conv1d = with_state_of(f"{_NAME}.to_conv1d", self, self._plain_class)
        for name in ("_recipe", "_plain_class", "force_fp8"):
            del conv1d.__dict__[name]
        return conv1d

    @property
    def recipe(self) -> Recipe:
        """The recipe: what is cast, and how."""
        return self._recipe

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.t(), self.bias
        require_input(_NAME, x, weight)
        out_features, in_features = weight.shape
        sizes = x.numel() // in_features, in_features, out_features
        if has_native(x.device) and (self.force_fp8 or fp8_wins(*sizes, self._recipe, x.device)):
            return linear(x, weight, bias, self._recipe)
        return torch.nn.functional.linear(x, weight.to(x.dtype), bias.to(x.dtype))

    def extra_repr(self) -> str:
        in_features, out_features = self.weight.shape
        return f"in_features={in_features}, out_features={out_features}, recipe={self._recipe}"


def is_conv1d(module: object) -> bool:
    """True if this is transformers' class itself, found by name: transformers is not imported."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def conv1ds(model: object, reason: str) -> dict[int, str]:
    """The Conv1D layers of a model, by identity, with a reason to leave them alone."""
    modules = model.modules() if isinstance(model, Module) else ()
    return {id(module): reason for module in modules if is_conv1d(module)}
