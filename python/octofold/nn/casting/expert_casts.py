"""Casts of experts' weights [experts, out, in], each expert's as if it were a layer alone."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.casts import quantize, quantize_both
from ..recipes.recipe import Recipe

# Of rows and transposes that one operation casts to, beside those of the same granularity.
_TOGETHER: Final = (("1x128", "channel"), ("1x128", "128x128"))


def cast_experts(
    weight: Tensor, rows: str | None, transposed: str | None, recipe: Recipe
) -> tuple[ScaledTensor | None, ScaledTensor | None]:
    """weight [experts, out, in] and the transposes [experts, in, out], at these granularities
    (None: not at all), with the scales that grouped_gemm() takes: [experts, …] of each one's own.
    Both from one read, where one operation casts to both granularities."""
    if rows is not None and (rows == transposed or (rows, transposed) in _TOGETHER):
        return quantize_both(
            _walkable(weight),
            *_options(rows, recipe),
            transposed_granularity=transposed,
            matrices=weight.shape[0],
        )
    return (
        None if rows is None else _cast(weight, rows, recipe, False),
        None if transposed is None else _cast(weight, transposed, recipe, True),
    )


def _cast(weight: Tensor, granularity: str, recipe: Recipe, transpose: bool) -> ScaledTensor:
    options = _options(granularity, recipe)
    return quantize(_walkable(weight), *options, transpose, matrices=weight.shape[0])


def _options(granularity: str, recipe: Recipe) -> tuple[str, str, bool, str, str]:
    return recipe.weight_dtype, granularity, recipe.power_of_two, "saturate", recipe.profile


def _walkable(weight: Tensor) -> Tensor:
    return weight if weight.is_contiguous() else weight.contiguous()


def transposed_experts(weight: ScaledTensor, recipe: Recipe) -> ScaledTensor:
    """The transposes of FP8 weights [experts, out, in] as products with gradients take them: the
    same values where squares share a scale, else cast from the values in bfloat16."""
    assert recipe.grad_input is not None
    granularity = recipe.grad_input.b
    if granularity != weight.granularity or granularity not in ("tensor", "128x128"):
        values: Tensor = weight.dequantize("bfloat16")
        return _cast(values, granularity, recipe, True)
    scale = weight.scale
    if granularity == "128x128":
        if scale.dim() == 2:  # of a cast of all experts' rows, squares below each other
            scale = scale.view(weight.shape[0], -1, scale.shape[1])
        scale = scale.transpose(1, 2).contiguous()
    codes = weight.data.view(torch.uint8).transpose(1, 2).contiguous()
    return ScaledTensor(codes.view(weight.dtype), scale, granularity)


def stacked_experts(
    operation: str, name: str, matrices: Sequence[Tensor] | Sequence[ScaledTensor]
) -> Tensor | ScaledTensor:
    """Each expert's matrix [out, in] as one [experts, out, in]; FP8 ones as they are. Raises
    InvalidArgumentError that names the argument."""
    scaled = [matrix for matrix in matrices if isinstance(matrix, ScaledTensor)]
    kinds = {(tuple(matrix.shape), matrix.dtype) for matrix in matrices}
    kinds |= {(tuple(matrix.scale.shape), matrix.granularity) for matrix in scaled}
    if len(scaled) not in (0, len(matrices)) or len(kinds) != (2 if scaled else 1):
        expected = "at least one matrix, all of one shape, dtype and granularity"
        raise invalid_argument(operation, name, expected, sorted(map(str, kinds)))
    if not scaled:
        return torch.stack([matrix for matrix in matrices if isinstance(matrix, Tensor)])
    codes = torch.stack([matrix.data.view(torch.uint8) for matrix in scaled])
    scale = torch.stack([matrix.scale for matrix in scaled])
    granularity, data = scaled[0].granularity, codes.view(scaled[0].dtype)
    return ScaledTensor(data, scale.flatten() if granularity == "tensor" else scale, granularity)


def joined_experts(
    operation: str, gate: Tensor | ScaledTensor, up: Tensor | ScaledTensor
) -> Tensor | ScaledTensor:
    """The first layers of gated experts, of gate and up [experts, inner, hidden]. Raises
    InvalidArgumentError where these cannot be put below each other."""
    if isinstance(gate, Tensor) and isinstance(up, Tensor) and gate.shape == up.shape:
        return torch.cat((gate, up), dim=1)
    expected = f"what goes with gate {list(gate.shape)}: the same shape and granularity, no scales "
    expected += "of tensors, and of 128x128 where `inner` is a multiple of 128"
    if (
        isinstance(gate, Tensor)
        or isinstance(up, Tensor)
        or gate.shape != up.shape
        or gate.granularity != up.granularity
        or gate.granularity == "tensor"
        or (gate.granularity == "128x128" and gate.shape[1] % 128 != 0)
    ):
        raise invalid_argument(operation, "up", expected, list(up.shape))
    codes = torch.cat([part.data.view(torch.uint8) for part in (gate, up)], dim=1)
    scale = torch.cat((gate.scale, up.scale), dim=1)
    return ScaledTensor(codes.view(gate.dtype), scale, gate.granularity)
