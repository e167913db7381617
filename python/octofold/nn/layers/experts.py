"""The experts of a layer, as a module."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

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
    expert_recipe_of,
    layer_of_experts,
    require_counts,
    require_projections,
    require_routed,
    require_same_device,
    run_experts,
)
from ..autograd.fitting import is_dtensor, is_fp8
from ..autograd.layer import Chain, Layer
from ..autograd.main_grad import wanted_main_grad
from ..casting.casts import joined_experts, stacked_experts
from ..casting.weight_casts import casts_for_call
from ..recipes.choice import require_compute
from .buffers import KeepsBuffers
from .linear import local_part, require_order
from .saving import CodedState


class Stacks(NamedTuple):
    """By default as octofold.nn.Experts has them: [experts, out, in], and in the first layer each
    expert's gates before its ups. Tensors are views where that is possible."""

    transposed: bool = False
    """[experts, in, out]."""
    interleaved: bool = False
    """Gates and ups are neighbours, 2·i and 2·i + 1."""

    def first_of_files(self, tensor: Tensor) -> Tensor:
        """A first layer [experts, 2·inner, hidden], or its bias [experts, 2·inner], of theirs."""
        if self.transposed and tensor.dim() == 3:
            tensor = tensor.transpose(1, 2)
        return torch.cat((tensor[:, ::2], tensor[:, 1::2]), 1) if self.interleaved else tensor

    def second_of_files(self, tensor: Tensor) -> Tensor:
        """A second layer [experts, hidden, inner]; its bias is the same either way."""
        return tensor.transpose(1, 2) if self.transposed and tensor.dim() == 3 else tensor

    def first_to_files(self, tensor: Tensor) -> Tensor:
        """The way back of first_of_files()."""
        if self.interleaved:
            tensor = torch.stack(tensor.chunk(2, 1), 2).flatten(1, 2)
        return tensor.transpose(1, 2) if self.transposed and tensor.dim() == 3 else tensor

    def second_to_files(self, tensor: Tensor) -> Tensor:
        """The way back of second_of_files()."""
        return self.second_of_files(tensor)


_NAME: Final = "octofold.nn.Experts"


class Experts(CodedState, KeepsBuffers):
    """The experts of a layer, without the router: octofold.experts() with weights of its own.

    hidden_features: the features of the input and of the result. inner_features: those of the
        activation.
    experts: the number of experts.
    bias: whether both layers of each expert have one.
    activation: as in octofold.mlp().
    device, dtype: as in torch.nn.Linear; dtype bfloat16, float16 or float32.
    recipe: as in octofold.experts().
    main_grad: as in octofold.nn.Linear, for both weights.
    compute: as in octofold.experts(), of FP8 weights.

    Its parameters have the names that transformers has for them:

    | name                              | shape                         | of                      |
    |-----------------------------------|-------------------------------|-------------------------|
    | gate_up_proj (gated)              | [experts, 2·inner, hidden],   | the first layer, gate   |
    |                                   |                               | first                   |
    | up_proj (plain)                   | [experts, inner, hidden]      | the first layer         |
    | down_proj                         | [experts, hidden, inner]      | the second              |
    | <name>_bias                       | [experts, out]                | either, with bias       |
    | <name>_scale_inv (FP8 128x128),   | as octofold.grouped_gemm()    | either, from FP8        |
    | <name>_scale (other FP8)          | takes them                    |                         |

    forward: x [..., hidden], topk_ids [..., k] and topk_weights [..., k] to [..., hidden];
    octofold.experts() says which dtypes, and what is kept for backward.

    Each forward casts the weights as they are then, of the experts that have tokens, unless
    octofold.nn.keep_casts() keeps the casts, of all. FP8 weights are buffers and have no gradients;
    to(), half() and the like move them without converting them. save_pretrained() of other
    libraries gets the numbers that they stand for.
    Raises InvalidArgumentError, which names the argument.
    """

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
        compute: str = "auto",
    ) -> None:
        recipe = expert_recipe_of(_NAME, recipe)
        require_compute(_NAME, compute)
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
        self._hold(first, second, first_bias, second_bias, activation, recipe, main_grad, compute)
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
        compute: str = "auto",
    ) -> Self:
        """Make experts from weights and biases, as octofold.experts() takes them. A
        torch.nn.Parameter is shared; another tensor becomes the data of a parameter; the tensors of
        a ScaledTensor become buffers.
        """
        operation = f"{_NAME}.from_weights"
        recipe = expert_recipe_of(operation, recipe)
        require_activation(operation, activation)
        require_projections(operation, w13, w2, b13, b2, activation, recipe)
        require_compute(operation, compute)
        module = cls.__new__(cls)
        module._hold(w13, w2, b13, b2, activation, recipe, main_grad, compute)
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
        compute: str = "auto",
    ) -> Self:
        """Make experts from each expert's own matrices, as checkpoints have them: gate and up
        [inner, hidden] (gate None for a plain activation), down [hidden, inner]. FP8 matrices
        (ScaledTensor) keep their bytes; with 128x128 scales `inner` has to be a multiple of 128, so
        that gate and up have squares of their own.
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
    def is_sharded(self) -> bool:
        """True once FSDP has sharded the weights."""
        return self._is_sharded

    def forward(self, input: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        first, second = (self.weight(name) for name in self._names)
        require_same_device(_NAME, input, first)
        require_routed(_NAME, input, topk_ids, topk_weights, first.shape[2])
        entry, exit = sides_of(self.sides)
        if entry is not ONE_PROCESS:
            topk_ids = entry.gather(topk_ids, topk_ids.shape)
            input, topk_weights = gather_tokens(input, entry), gather_tokens(topk_weights, entry)
        grad = torch.is_grad_enabled()
        compute = chosen_compute(input, first, second, self.compute)
        of_x = grad and input.requires_grad
        of_first = self._layer(self._names[0], first, of_x, compute)
        both = of_x or (grad and of_first.needs_gradient())
        of_second = self._layer(self._names[1], second, both, compute)
        if of_second.bias is not None and exit is not ONE_PROCESS:
            of_second = of_second._replace(bias=bias_on_one_rank(of_second.bias, exit))
        layers = of_first, of_second
        chain = Chain("experts", self._recipe, activation=self.activation)
        y = run_experts(input, topk_ids, topk_weights, layers, chain, compute)
        return y if exit is ONE_PROCESS else reduce_partial(y, exit)

    @property
    def weight_names(self) -> tuple[str, str]:
        """The names of the first layer's parameter, and of the second's."""
        return self._names

    def hold_fp8(self, first: ScaledTensor, second: ScaledTensor) -> None:
        """Take these in the place of FP8 weights."""
        for name, weight in zip(self._names, (first, second), strict=True):
            self.register_buffer(name, weight.data)
            self.register_buffer(self._scale_name(name), weight.scale)

    def weight(self, name: str) -> Tensor | ScaledTensor:
        """The parameter of this name, or what holds it in FP8."""
        scale_name = self._scale_name(name)
        weight: Tensor = self._own(name)
        if self._buffers.get(scale_name) is None:
            return weight
        assert self._recipe.output is not None
        return ScaledTensor(weight, self._own(scale_name), self._recipe.output.b.granularity)

    def cast_weights(self) -> list[tuple[tuple[Tensor, ...], Recipe]]:
        """The layer's casts, as octofold.nn.Linear returns them; none of FP8 weights."""
        weights = [self._parameters.get(name) for name in self._names]
        return [((weight,), self._recipe) for weight in weights if weight is not None]

    def reset_parameters(self) -> None:
        """Initialize each expert as torch.nn.Linear does. FP8 weights stay as they are."""
        for name in self._names:
            weight = self._parameters.get(name)
            bias = self._parameters.get(f"{name}_bias")
            bound = 1 / math.sqrt(getattr(self, name).shape[-1])
            for parameter in (weight, bias):
                if parameter is not None:
                    torch.nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        count, hidden, inner = getattr(self, self._names[1]).shape
        text = f"hidden_features={hidden}, inner_features={inner}, experts={count}"
        bias = getattr(self, f"{self._names[0]}_bias") is not None
        text += f", bias={bias}, activation={self.activation}, recipe={self._recipe}"
        return text if self.compute == "auto" else f"{text}, compute={self.compute}"

    def __setattr__(self, name: str, value: Any) -> None:
        # FSDP2 swaps parameters by setattr, as octofold.nn.Linear says.
        if is_dtensor(value):
            require_order(_NAME, name, value)
            self.__dict__["_is_sharded"] = True
        super().__setattr__(name, value)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in (f"{prefix}{name}" for name in self._names if self._holds_fp8()):
            # On a GPU rows are apart (frameworks.row_stride()), and safetensors takes none such.
            destination[key] = destination[key].contiguous()

    def _in_files(self, dtype: torch.dtype) -> dict[str, Callable[[], Tensor] | None]:
        if not self._holds_fp8() and self.in_files == Stacks():
            return {}
        makers: dict[str, Callable[[], Tensor] | None] = {}
        ways = self.in_files.first_to_files, self.in_files.second_to_files
        for name, to_files in zip(self._names, ways, strict=True):
            weight, bias = self.weight(name), getattr(self, f"{name}_bias")
            if isinstance(weight, ScaledTensor):
                makers[self._scale_name(name)] = None
            makers[name] = functools.partial(_numbers, weight, dtype, to_files)
            if bias is not None:
                makers[f"{name}_bias"] = functools.partial(to_files, bias)
        return makers

    def _holds_fp8(self) -> bool:
        return isinstance(self.weight(self._names[1]), ScaledTensor)

    def _hold(
        self,
        first: Tensor | ScaledTensor,
        second: Tensor | ScaledTensor,
        first_bias: Tensor | None,
        second_bias: Tensor | None,
        activation: str,
        recipe: Recipe,
        main_grad: bool,
        compute: str,
    ) -> None:
        Module.__init__(self)
        self.activation = activation
        self.main_grad = main_grad
        self.compute = compute
        self._recipe = recipe
        self._names = ("gate_up_proj" if is_gated(activation) else "up_proj", "down_proj")
        parts = (first, first_bias), (second, second_bias)
        for name, (weight, bias) in zip(self._names, parts, strict=True):
            if isinstance(weight, ScaledTensor):
                self.register_buffer(name, weight.data.detach())
                self.register_buffer(self._scale_name(name), weight.scale.detach())
            else:
                self.register_parameter(name, _parameter(weight))
            self.register_parameter(f"{name}_bias", None if bias is None else _parameter(bias))

    def _own(self, name: str) -> Any:
        """A parameter or buffer: in a group of ranks what this one has of it."""
        parameter = getattr(self, name)
        return parameter if self.sides is None else local_part(parameter)

    def _scale_name(self, name: str) -> str:
        assert self._recipe.output is not None
        squares = self._recipe.output.b.granularity == "128x128"
        return f"{name}_scale_inv" if squares else f"{name}_scale"

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

    def _objection(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        for name in self._names:
            weight, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if weight is not None and is_fp8(weight) != is_fp8(own):
                return (
                    f"{_NAME}: '{prefix}{name}': expected {own.dtype}, got {weight.dtype}: "
                    "octofold.nn.Experts.from_weights() makes experts of FP8 weights"
                )
        return None


def _numbers(
    weight: Tensor | ScaledTensor, dtype: torch.dtype, to_files: Callable[[Tensor], Tensor]
) -> Tensor:
    return to_files(weight.dequantize(dtype) if isinstance(weight, ScaledTensor) else weight)


def _parameter(tensor: Tensor) -> Parameter:
    return tensor if isinstance(tensor, Parameter) else Parameter(tensor)
