"""The experts of a layer, as a module."""

import math
from collections.abc import Sequence
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._info import HIGH_PRECISION, NATIVE
from ..autograd.activated import is_gated
from ..autograd.blocks import require_activation
from ..autograd.boundary import (
    ONE_PROCESS,
    Sides,
    bias_on_one_rank,
    gather_tokens,
    reduce_partial,
    sides_of,
)
from ..autograd.experts import (
    chosen_compute,
    compute_of,
    expert_recipe_of,
    layer_of_experts,
    require_counts,
    require_projections,
    require_routed,
    require_same_device,
    require_weight,
    run_experts,
)
from ..autograd.experts_composed import Adapters, terms_of
from ..autograd.fitting import is_dtensor, local_part
from ..autograd.layer import Chain, Layer
from ..autograd.main_grad import wanted_main_grad
from ..casting.casts import as_operand, joined_experts, stacked_experts
from ..casting.fp8_weight import Fp8Weight
from ..casting.weight_casts import casts_for_call
from ..casting.weight_layouts import Stacks
from .fp8_parameters import hold
from .linear import require_order
from .saving import wrap_writers
from .state import PlainState

_NAME: Final = "octofold.nn.Experts"


class Experts(PlainState):
    """The experts of a layer, without the router: octofold.experts() with weights of its own.

    hidden_features: the features of the input and of the result. inner_features: those of the
        activation.
    experts: the number of experts.
    bias: whether both layers of each expert have one.
    activation: as in octofold.mlp().
    device, dtype: as in torch.nn.Linear; dtype bfloat16, float16 or float32.
    recipe: as in octofold.experts().
    main_grad: as in octofold.nn.Linear, for both weights.

    Its parameters have the names that transformers has for them:

    | name                              | shape                         | of                      |
    |-----------------------------------|-------------------------------|-------------------------|
    | gate_up_proj (gated)              | [experts, 2·inner, hidden],   | the first layer, gate   |
    |                                   |                               | first                   |
    | up_proj (plain)                   | [experts, inner, hidden]      | the first layer         |
    | down_proj                         | [experts, hidden, inner]      | the second              |
    | <name>_bias                       | [experts, out]                | either, with bias       |

    forward: x [..., hidden], topk_ids [..., k] and topk_weights [..., k] to [..., hidden];
    octofold.experts() says which dtypes, and what is kept for backward. adapters: low-rank terms
    beside FP8 weights, by the names of these: a [experts, r, in] and b [experts, out, r], which add
    x · aᵀ · bᵀ to what an expert's layer gives, by torch's grouped products in the dtype of its
    rows, with gradients by both.

    Each forward casts the weights as they are then, of the experts that have tokens, unless
    octofold.nn.keep_casts() keeps the casts, of all. FP8 weights are octofold.nn.Fp8Weights: they
    have no gradients, and say in `compute` how the experts compute. load_state_dict() also takes
    their codes with scales beside them, as octofold.grouped_gemm() takes these: <name>_scale_inv
    (128x128) or <name>_scale (others).
    Raises InvalidArgumentError, which names the argument.
    """

    weight_names: tuple[str, str]
    """The names of the first layer's parameter, and of the second's."""

    sides: Sides | None = None
    """Boundaries where tokens enter and leave, in a group of ranks of which each has a part of each
    expert. None: the layer is whole in this process."""

    in_files: Stacks = Stacks()
    """How save_pretrained() of other libraries is to write the weights."""

    _is_sharded = False

    def __init__(
        self,
        hidden_features: int,
        inner_features: int,
        experts: int,
        bias: bool = False,
        activation: str = "swiglu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        main_grad: bool = False,
    ) -> None:
        recipe = expert_recipe_of(_NAME, recipe)
        require_activation(_NAME, activation)
        require_counts(
            _NAME,
            hidden_features=hidden_features,
            inner_features=inner_features,
            experts=experts,
        )
        features = 2 * inner_features if is_gated(activation) else inner_features
        shapes = (experts, features, hidden_features), (experts, hidden_features, inner_features)
        first, second = (torch.empty(shape, device=device, dtype=dtype) for shape in shapes)
        first_bias = second_bias = None
        if bias:
            first_bias, second_bias = (
                torch.empty(shape[:2], device=device, dtype=dtype) for shape in shapes
            )
        self._hold(first, second, first_bias, second_bias, activation, recipe, main_grad)
        self.reset_parameters()

    @classmethod
    def from_weights(
        cls,
        w13: Tensor | ScaledTensor,
        w2: Tensor | ScaledTensor,
        b13: Tensor | None = None,
        b2: Tensor | None = None,
        activation: str = "swiglu",
        recipe: Recipe | str = "blockwise",
        *,
        main_grad: bool = False,
        compute: str | None = None,
    ) -> Self:
        """Make experts from weights and biases, as octofold.experts() takes them. A
        torch.nn.Parameter is shared; another tensor becomes the data of a parameter.

        compute: as in octofold.experts(), of a ScaledTensor, which becomes an octofold.nn.Fp8Weight
            of bfloat16 numbers. One that is there already says it itself, and the same.
        """
        operation = f"{_NAME}.from_weights"
        recipe = expert_recipe_of(operation, recipe)
        require_activation(operation, activation)
        compute = compute_of(operation, compute, w13=w13, w2=w2)
        operands = as_operand(w13), as_operand(w2)
        require_projections(operation, *operands, b13, b2, activation, recipe)
        first, second = (_held(weight, recipe, compute) for weight in (w13, w2))
        module = cls.__new__(cls)
        module._hold(first, second, b13, b2, activation, recipe, main_grad)
        return module

    @classmethod
    def from_experts(
        cls,
        gate: Sequence[Tensor] | Sequence[ScaledTensor] | None,
        up: Sequence[Tensor] | Sequence[ScaledTensor],
        down: Sequence[Tensor] | Sequence[ScaledTensor],
        activation: str = "swiglu",
        recipe: Recipe | str = "blockwise",
        *,
        main_grad: bool = False,
        compute: str | None = None,
    ) -> Self:
        """Make experts from each expert's own matrices, as checkpoints have them: gate and up
        [inner, hidden] (gate None for a plain activation), down [hidden, inner]. FP8 matrices
        (ScaledTensor) keep their bytes, and compute as from_weights() says; with 128x128 scales
        `inner` has to be a multiple of 128, so that gate and up have squares of their own.
        """
        operation = f"{_NAME}.from_experts"
        require_activation(operation, activation)
        if (gate is not None) != is_gated(activation):
            expected = f"{'matrices' if gate is None else 'None'} for {activation}"
            raise invalid_argument(operation, "gate", expected, "None" if gate is None else "some")
        first = stacked_experts(operation, "up", up)
        if gate is not None:
            first = joined_experts(operation, stacked_experts(operation, "gate", gate), first)
        second = stacked_experts(operation, "down", down)
        options: dict[str, Any] = {"main_grad": main_grad, "compute": compute}
        return cls.from_weights(first, second, None, None, activation, recipe, **options)

    @property
    def recipe(self) -> Recipe:
        """The recipe: what is cast, and how."""
        return self._recipe

    @property
    def compute(self) -> str:
        """How FP8 weights are computed with, as octofold.experts() has it."""
        weight = self._own(self.weight_names[1])
        return weight.compute if isinstance(weight, Fp8Weight) else "auto"

    @property
    def is_sharded(self) -> bool:
        """True once FSDP has sharded the weights."""
        return self._is_sharded

    def forward(
        self, input: Tensor, topk_ids: Tensor, topk_weights: Tensor, adapters: Adapters = None
    ) -> Tensor:
        if adapters and self.sides is not None:
            raise invalid_argument(_NAME, "adapters", "none over several ranks", [*adapters])
        first, second = self._operands()
        terms = terms_of(_NAME, adapters, self.weight_names, (first, second))
        require_same_device(_NAME, input, first)
        require_routed(_NAME, input, topk_ids, topk_weights, first.shape[2])
        entry, exit = sides_of(self.sides)
        if entry is not ONE_PROCESS:
            topk_ids = entry.gather(topk_ids, topk_ids.shape)
            input, topk_weights = gather_tokens(input, entry), gather_tokens(topk_weights, entry)
        grad = torch.is_grad_enabled()
        compute = chosen_compute(input, first, second, self.compute)
        of_x = grad and input.requires_grad
        of_first = self._layer(self.weight_names[0], first, of_x, compute)
        both = of_x or (grad and of_first.needs_gradient())
        of_second = self._layer(self.weight_names[1], second, both, compute)
        if of_second.bias is not None and exit is not ONE_PROCESS:
            of_second = of_second._replace(bias=bias_on_one_rank(of_second.bias, exit))
        layers = of_first, of_second
        chain = Chain("experts", self._recipe, activation=self.activation)
        y = run_experts(input, topk_ids, topk_weights, layers, chain, compute, terms)
        return y if exit is ONE_PROCESS else reduce_partial(y, exit)

    def cast_weights(self) -> list[tuple[tuple[Tensor, ...], Recipe]]:
        """The layer's casts, as octofold.nn.Linear returns them; none of FP8 weights."""
        weights = [self._trained(name) for name in self.weight_names]
        return [((weight,), self._recipe) for weight in weights if weight is not None]

    def reset_parameters(self) -> None:
        """Initialize each expert as torch.nn.Linear does. FP8 weights stay as they are."""
        for name in self.weight_names:
            weight, bias = self._trained(name), self._parameters.get(f"{name}_bias")
            bound = 1 / math.sqrt(getattr(self, name).shape[-1])
            for parameter in (weight, bias):
                if parameter is not None:
                    torch.nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        count, hidden, inner = getattr(self, self.weight_names[1]).shape
        text = f"hidden_features={hidden}, inner_features={inner}, experts={count}"
        bias = getattr(self, f"{self.weight_names[0]}_bias") is not None
        return f"{text}, bias={bias}, activation={self.activation}, recipe={self._recipe}"

    def __setattr__(self, name: str, value: Any) -> None:
        # FSDP2 swaps parameters by setattr, as octofold.nn.Linear says.
        if is_dtensor(value):
            require_order(_NAME, name, value)
            self.__dict__["_is_sharded"] = True
        elif isinstance(value, Fp8Weight) and not self._is_sharded:
            others = {one: self._parameters.get(one) for one in self.weight_names if one != name}
            require_weight(_NAME, name, value.scaled, self._recipe)
            compute_of(_NAME, None, **others, **{name: value})
        super().__setattr__(name, value)

    def _hold(
        self,
        first: Tensor,
        second: Tensor,
        first_bias: Tensor | None,
        second_bias: Tensor | None,
        activation: str,
        recipe: Recipe,
        main_grad: bool,
    ) -> None:
        Module.__init__(self)
        wrap_writers()
        self.activation = activation
        self.main_grad = main_grad
        self._recipe = recipe
        self.weight_names = ("gate_up_proj" if is_gated(activation) else "up_proj", "down_proj")
        parts = (first, first_bias), (second, second_bias)
        for name, (weight, bias) in zip(self.weight_names, parts, strict=True):
            if isinstance(weight, Fp8Weight):
                hold(self, weight, name)
            else:
                self.register_parameter(name, _parameter(weight))
            self.register_parameter(f"{name}_bias", None if bias is None else _parameter(bias))

    def _own(self, name: str) -> Any:
        """A parameter or buffer: in a group of ranks what this one has of it."""
        parameter = getattr(self, name)
        return parameter if self.sides is None else local_part(parameter)

    def _trained(self, name: str) -> Parameter | None:
        """The weight of this name, where it is not in FP8 alone."""
        return None if isinstance(self._own(name), Fp8Weight) else self._parameters.get(name)

    def _operands(self) -> tuple[Tensor | ScaledTensor, ...]:
        """Both weights as operations take them. FSDP gathers weights that are trained as codes too:
        these have a gradient, and stay tensors."""
        weights = tuple(self._own(name) for name in self.weight_names)
        return weights if self._is_sharded else tuple(map(as_operand, weights))

    def _layer(
        self,
        name: str,
        weight: Tensor | ScaledTensor,
        transposed: bool,
        compute: str = NATIVE,
    ) -> Layer:
        bias = self._own(f"{name}_bias")
        if isinstance(weight, ScaledTensor):
            return layer_of_experts(weight, bias)
        if is_dtensor(weight):
            expected = "whole weights: fully_shard() the module or what it is in"
            raise invalid_argument(_NAME, name, expected, "a DTensor")
        main_grad = wanted_main_grad(_NAME, self.main_grad, weight, self._is_sharded)
        casts = None
        if compute != HIGH_PRECISION:
            casts = casts_for_call((weight,), self._recipe, transposed, self._is_sharded)
        return layer_of_experts(weight, bias, casts, main_grad)


def _held(weight: Tensor | ScaledTensor, recipe: Recipe, compute: str) -> Tensor:
    """A weight as a parameter has it: of codes and scales an Fp8Weight, with scales of each expert
    apart."""
    if isinstance(weight, ScaledTensor):
        assert recipe.output is not None
        weight = Fp8Weight.of(weight, torch.bfloat16, recipe.output.b, compute=compute)
    if isinstance(weight, Fp8Weight) and weight.granularity == "128x128":
        weight.scale = weight.scale.reshape(len(weight), -1, weight.scale.shape[-1])
    return weight


def _parameter(tensor: Tensor) -> Parameter:
    return tensor if isinstance(tensor, Parameter) else Parameter(tensor)
