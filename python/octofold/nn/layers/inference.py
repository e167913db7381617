"""A linear layer whose weight is FP8, multiplied in FP8 where the GPU can."""

from typing import Final, Self

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.recipe import Product, Recipe, recipe_of
from ..._core.scaled_tensor import ScaledTensor
from ..autograd.fitting import require_input
from ..autograd.frozen import frozen_linear
from ..casting.casts import cast_weight
from .fp8_linear import Fp8Linear, linear_of

_NAME: Final = "octofold.nn.InferenceLinear"


class InferenceLinear(Fp8Linear):
    """x · weightᵀ (+ bias) with a frozen weight kept in FP8, and a gradient by x: adapters (LoRA)
    can be trained over it.

    in_features, out_features, bias, device: as in torch.nn.Linear.
    dtype: of the bias; it need not be that of x.
    recipe: an octofold.nn.Recipe or the name of one. Its product `output` is used, and backward
        `grad_input`; what is cast is always cast by scales of its own, also where the recipe delays
        them.

    few_tokens: up to so many tokens of 16 bits are multiplied as they are, as in
        octofold.nn.WeightOnlyLinear, where the weight's bytes take the time; 0: none are.

    A GPU without FP8 products multiplies all tokens as they are: 16 bits by the weight's codes,
    float32 by a copy of the weight. That is asked in each forward, where x is, and nothing of it is
    in state_dict(): a layer that was saved on one GPU runs on any other.

    A new layer is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Linear, with the scales that the recipe gives a weight.

    forward: x [..., in] of bfloat16, float16 or float32 to [..., out] in the dtype of x, or in
    autocast's. Weight and bias have no gradient. For that by x backward transposes the codes, with
    scales 128x128 and tensor to the same values; with others it casts the values again. On a GPU,
    with scales 1x128 and 128x128, the product itself casts an x of few tokens (octofold.gemm of an
    array).
    Raises InvalidArgumentError, which names the argument.
    """

    own_name = _NAME

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        few_tokens: int = 0,
    ) -> None:
        if few_tokens < 0:
            raise invalid_argument(_NAME, "few_tokens", "a number of tokens", few_tokens)
        recipe = recipe_of(_NAME, recipe)
        product = _output_of(_NAME, recipe)
        super().__init__(in_features, out_features, bias, device, dtype, product.b)
        self._recipe = recipe
        self.few_tokens = few_tokens

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, recipe: Recipe | str = "blockwise") -> Self:
        """Make the FP8 twin of a torch.nn.Linear (or octofold.nn.Linear). Its results have the bits
        of octofold.nn.Linear's with this recipe, without gradients. The bias is shared, as a
        buffer.
        """
        operation = f"{_NAME}.from_linear"
        recipe = recipe_of(operation, recipe)
        _output_of(operation, recipe)
        linear = linear_of(operation, linear)
        bias = None if linear.bias is None else linear.bias.detach()
        return cls.twin_of(linear, _cast(linear.weight, recipe), bias, recipe=recipe)

    @property
    def recipe(self) -> Recipe:
        """The recipe: what is cast, and how."""
        return self._recipe

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        return frozen_linear(
            input,
            self.scaled_weight,
            self.own_bias(),
            "native",
            recipe=self._recipe,
            few_tokens=self.few_tokens,
            batch_invariant=self._recipe.batch_invariant,
            sides=self.sides,
        )

    def recast(self, weight: Tensor) -> None:
        self.hold(_cast(weight, self._recipe), self.bias)

    def extra_repr(self) -> str:
        few = f", few_tokens={self.few_tokens}" if self.few_tokens else ""
        return f"{super().extra_repr()}, recipe={self._recipe}{few}"


def _cast(weight: Tensor, recipe: Recipe) -> ScaledTensor:
    """The weight [out, in] as the output's product takes it."""
    with torch.no_grad():
        rows, _ = cast_weight(weight, recipe, True, False)
    assert rows is not None
    return rows


def _output_of(operation: str, recipe: Recipe) -> Product:
    if recipe.output is None:
        expected = "one whose product 'output' is in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe.output
