"""A norm and the linear layer after it, as one module."""

from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.recipe import Recipe
from ..autograd.blocks import chain_recipe_of
from ..autograd.fitting import require_features, require_fitting
from ..autograd.layer import Before, Chain
from ..autograd.layer_call import run
from ..autograd.normed import norm_of, require_norm_fitting
from .fused_components import (
    common_recipe,
    epsilon_text,
    layer_of,
    linear_component,
    new_norm,
    norm_component,
    norm_operands,
    wins,
)
from .linear import Linear

_NAME: Final = "octofold.nn.NormLinear"


class NormLinear(Module):
    """linear(norm(x + residual)). The norm is cast to FP8 as it is computed.

    Its parts are ordinary modules, `norm` (torch.nn.RMSNorm or LayerNorm) and `linear`
    (octofold.nn.Linear): state_dict() has "norm.weight", "linear.weight" and so on.

    in_features, out_features, bias, device, dtype, recipe, force_fp8: as in octofold.nn.Linear; the
        recipe has its output in FP8.
    norm: "rms" or "layer".
    epsilon: that of the norm.

    forward: x [..., in], and a residual of its shape and dtype or None, to [..., out]; with a
    residual to a pair of that and x + residual. octofold.norm_linear() says what is kept for
    backward.

    The parts run one after the other where they cannot be one: where FP8 was measured to be slower
    or the GPU has none, and after octofold.nn.restore(). Otherwise they are not called: their hooks
    do not run, and the norm's epsilon is the one that it had at the start.
    Raises InvalidArgumentError, which names the argument.
    """

    norm: Module
    linear: Module

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        norm: str = "rms",
        epsilon: float = 1e-6,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        force_fp8: bool = False,
    ) -> None:
        recipe = chain_recipe_of(_NAME, recipe)
        require_features(_NAME, in_features, out_features)
        of_norm = norm_of(_NAME, norm, epsilon)
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        part = new_norm(of_norm.kind, in_features, of_norm.epsilon, **options)
        self.norm, self._epsilon = part, epsilon_text(part)
        options |= {"recipe": recipe, "force_fp8": force_fp8}
        self.linear = Linear(in_features, out_features, bias, **options)

    @classmethod
    def from_modules(
        cls,
        norm: Module,
        linear: torch.nn.Linear,
        recipe: Recipe | str | None = None,
        *,
        force_fp8: bool = False,
    ) -> Self:
        """Make a module from a torch.nn.RMSNorm or LayerNorm itself and a torch.nn.Linear, whose
        parameters it shares, or an octofold.nn.Linear, which it takes as it is, with its recipe and
        force_fp8.
        """
        operation = f"{_NAME}.from_modules"
        part = linear_component(operation, "linear", linear, recipe, force_fp8)
        own_norm = norm_component(operation, norm, part.in_features)
        module = cls.__new__(cls)
        Module.__init__(module)
        module.norm, module.linear = own_norm, part
        module._epsilon = epsilon_text(own_norm)
        return module.train(linear.training)

    def forward(
        self, input: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        linear = self.linear
        recipe = common_recipe((linear,))
        if recipe is None or not isinstance(linear, Linear):
            return self._by_parts(input, residual)
        require_fitting(_NAME, input, *linear.own_parameters())
        norm, norm_weight, norm_bias = norm_operands(self.norm, self._epsilon, input.dtype)
        require_norm_fitting(_NAME, input, residual, norm_weight, norm_bias, linear.weight)
        if not wins((linear,), input, recipe):
            return self._by_parts(input, residual)
        before = Before(input, residual, norm_weight, norm_bias)
        both = torch.is_grad_enabled() and before.needs_gradient()
        layer = layer_of(_NAME, (linear,), recipe, both)
        y, total = run(before, (layer,), Chain(_NAME, recipe, norm, sides=linear.sides))
        return y if residual is None else (y, total)

    def _by_parts(self, x: Tensor, residual: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        y: Tensor = self.linear(self.norm(total))
        return y if residual is None else (y, total)
