"""Two linear layers and the activation between them, as one module."""

from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..autograd.activated import activated, is_gated
from ..autograd.blocks import chain_recipe_of, require_activation, require_hidden
from ..autograd.boundary import sides_of
from ..autograd.fitting import require_features, require_input
from ..autograd.layer import Before, Chain
from ..autograd.layer_call import run
from ..autograd.normed import norm_of, require_norm_fitting
from .fused_components import (
    NormModule,
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

_NAME: Final = "octofold.nn.MLP"


class MLP(Module):
    """down(activation(gate_up(x))) in FP8. The activation is cast as it is computed. A norm of
    x + residual may stand before it.

    Its parts are ordinary modules, octofold.nn.Linear and torch's norms: state_dict() has the names

    | made from                      | names                               |
    |--------------------------------|-------------------------------------|
    | sizes, or (gate_up, down)      | gate_up_proj, down_proj             |
    | (gate, up, down)               | gate_proj, up_proj, down_proj       |
    | plain: sizes, or (up, down)    | up_proj, down_proj                  |
    | with a norm                    | norm                                |

    gate_proj and up_proj stay two parameters, and still are one product: they are put one below the
    other as they are cast, which copies them.

    in_features, device, dtype, recipe, force_fp8: as in octofold.nn.Linear; the recipe has
        its output in FP8.
    hidden_features: those of the activation. out_features: None means in_features.
    bias: for all layers. Its gradients come from the casts of what they are sums of.
    activation: as in octofold.mlp().
    norm, epsilon: None, "rms" or "layer", and its epsilon.
    keep_fp8: as in octofold.mlp().

    forward: x [..., in], and a residual of its shape and dtype or None (only with a norm), to
    [..., out]; with a residual to a pair of that and x + residual. octofold.mlp() says what is kept
    for backward.

    The parts run one after the other where they cannot be one: where FP8 was measured to be slower
    for one of them or the GPU has none, and after octofold.nn.restore(). Otherwise they are not
    called: their hooks do not run, and the norm's epsilon is the one that it had at the start.
    Raises InvalidArgumentError, which names the argument.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        activation: str = "swiglu",
        norm: str | None = None,
        epsilon: float = 1e-6,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        force_fp8: bool = False,
        keep_fp8: bool = False,
    ) -> None:
        recipe = chain_recipe_of(_NAME, recipe)
        out_features = in_features if out_features is None else out_features
        require_features(_NAME, in_features, out_features)
        if not isinstance(hidden_features, int) or hidden_features < 1:
            expected = "a whole number of at least 1"
            raise invalid_argument(_NAME, "hidden_features", expected, repr(hidden_features))
        require_activation(_NAME, activation)
        of_norm = None if norm is None else norm_of(_NAME, norm, epsilon)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        of_linear = options | {"recipe": recipe, "force_fp8": force_fp8}
        factor = 2 if is_gated(activation) else 1
        self._hold(
            (Linear(in_features, factor * hidden_features, bias, **of_linear),),
            Linear(hidden_features, out_features, bias, **of_linear),
            activation,
            None if of_norm is None else new_norm(of_norm.kind, in_features, epsilon, **options),
            keep_fp8,
        )

    @classmethod
    def from_linears(
        cls,
        *linears: torch.nn.Linear,
        activation: str = "swiglu",
        norm: Module | None = None,
        recipe: Recipe | str | None = None,
        force_fp8: bool = False,
        keep_fp8: bool = False,
    ) -> Self:
        """Make an MLP from (gate, up, down) or from two layers: (gate_up, down) with the gate's
        rows first, and for a plain activation (up, down). The layers may be torch.nn.Linear, whose
        parameters it shares, or octofold.nn.Linear, which it takes as they are. norm: a
        torch.nn.RMSNorm or LayerNorm.
        """
        operation = f"{_NAME}.from_linears"
        require_activation(operation, activation)
        counts = (2, 3) if is_gated(activation) else (2,)
        if len(linears) not in counts:
            words = " or ".join(f"{count} layers" for count in counts)
            raise invalid_argument(operation, "linears", f"{words} for {activation}", len(linears))
        parts = [
            linear_component(operation, f"linears[{index}]", linear, recipe, force_fp8)
            for index, linear in enumerate(linears)
        ]
        *first, down = parts
        shapes = {(part.in_features, part.out_features, part.bias is None) for part in first}
        recipes = {str(part.recipe) for part in parts}
        if len(shapes) != 1:
            got = " and ".join(f"{i} -> {o}, bias={not b}" for i, o, b in sorted(shapes))
            raise invalid_argument(operation, "linears", "gate and up of one shape", got)
        if len(recipes) != 1:
            raise invalid_argument(operation, "linears", "one recipe", ", ".join(sorted(recipes)))
        features = sum(part.out_features for part in first)
        require_hidden(operation, features, down.weight, activation, "linears")
        own_norm = None if norm is None else norm_component(operation, norm, first[0].in_features)
        module = cls.__new__(cls)
        module._hold(tuple(first), down, activation, own_norm, keep_fp8)
        return module.train(linears[0].training)

    def forward(
        self, input: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if residual is not None and self.norm is None:
            raise invalid_argument(_NAME, "residual", "None without a norm", "a tensor")
        first, down = self.first_layers(), self.down_proj
        recipe = common_recipe((*first, down))
        if recipe is None:
            return self._by_parts(input, residual)
        require_input(_NAME, input, first[0].weight)
        norm = norm_weight = norm_bias = None
        if self.norm is not None:
            norm, norm_weight, norm_bias = norm_operands(self.norm, self._epsilon, input.dtype)
        require_norm_fitting(_NAME, input, residual, norm_weight, norm_bias, first[0].weight)
        if not wins((*first, down), input, recipe):
            return self._by_parts(input, residual)
        before = Before(input, residual, norm_weight, norm_bias)
        differentiates = torch.is_grad_enabled()
        both = differentiates and before.needs_gradient()
        layer = layer_of(_NAME, first, recipe, both)
        both = both or (differentiates and layer.needs_gradient())
        second = layer_of(_NAME, (down,), recipe, both)
        sides = first[0].sides
        if sides is not None:
            sides = sides._replace(exit=sides_of(down.sides)[1])
        chain = Chain(_NAME, recipe, norm, self.activation, self.keep_fp8, sides)
        y, total = run(before, (layer, second), chain)
        return y if residual is None else (y, total)

    def extra_repr(self) -> str:
        return f"activation={self.activation}, keep_fp8={self.keep_fp8}"

    def _hold(
        self,
        first: tuple[Linear, ...],
        down: Linear,
        activation: str,
        norm: NormModule | None,
        keep_fp8: bool,
    ) -> None:
        Module.__init__(self)
        self.activation = activation
        self.keep_fp8 = keep_fp8
        self.norm = norm
        self._epsilon = "" if norm is None else epsilon_text(norm)
        names: tuple[str, ...] = ("gate_proj", "up_proj")
        if len(first) == 1:
            names = ("gate_up_proj",) if is_gated(activation) else ("up_proj",)
        self._names = names
        for name, linear in zip(names, first, strict=True):
            setattr(self, name, linear)
        self.down_proj = down

    def first_layers(self) -> tuple[Any, ...]:
        """The layers whose results the activation takes: one, or gate and up."""
        return tuple(self._modules[name] for name in self._names)

    def cast_weights(self) -> list[tuple[tuple[Tensor, ...], Recipe]] | None:
        """The casts of all layers together, as in octofold.nn.Linear; None: each is by itself."""
        first, down = self.first_layers(), self.down_proj
        recipe = common_recipe((*first, down))
        if recipe is None or len(first) == 1:
            return None
        weights = tuple(linear.weight for linear in first)
        return [(weights, recipe), ((down.weight,), recipe)]

    def _by_parts(self, x: Tensor, residual: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        normed = total if self.norm is None else self.norm(total)
        parts = [linear(normed) for linear in self.first_layers()]
        gate_up = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        y: Tensor = self.down_proj(activated(gate_up, self.activation))
        return y if residual is None else (y, total)
