"""Casts of experts' weights [experts, out, in], each expert's as if it were a layer alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .._core.ops import quick_scale_shape
from .._core.torch import DTYPES
from ..casts import quantize
from ..errors import invalid_argument
from ..scaled_tensor import ScaledTensor
from .recipes import Recipe


def cast_experts(
    weight: Tensor, granularity: str, recipe: Recipe, transpose: bool = False
) -> ScaledTensor:
    """weight [experts, out, in], or the transposes [experts, in, out], with the scales that
    grouped_gemm() takes: [experts, …] of each expert's own."""
    weight = weight if weight.is_contiguous() else weight.contiguous()
    experts, rows, cols = weight.shape
    power_of_two, profile = recipe.power_of_two, recipe.profile
    if not transpose and _are_apart(granularity, rows):
        whole = quantize(
            weight, recipe.weight_dtype, granularity, power_of_two, "saturate", profile
        )
        return ScaledTensor(whole.data, _by_expert(whole), granularity)
    shape = (cols, rows) if transpose else (rows, cols)
    data = weight.new_empty((experts, *shape), dtype=DTYPES[recipe.weight_dtype])
    scale = weight.new_empty((experts, *quick_scale_shape(granularity, shape)), dtype=torch.float32)
    for one, codes, units in zip(weight.unbind(), data.unbind(), scale.unbind(), strict=True):
        out = ScaledTensor(codes, units, granularity)
        quantize(
            *(one, recipe.weight_dtype, granularity, power_of_two, "saturate", profile, transpose),
            out=out,
        )
    return ScaledTensor(data, scale.flatten() if granularity == "tensor" else scale, granularity)


def transposed_experts(weight: ScaledTensor, recipe: Recipe) -> ScaledTensor:
    """The transposes of FP8 weights [experts, out, in] as products with gradients take them: the
    same values where squares share a scale, else cast from the values in bfloat16."""
    assert recipe.grad_input is not None
    granularity = recipe.grad_input.b
    if granularity != weight.granularity or granularity not in ("tensor", "128x128"):
        values: Tensor = weight.dequantize("bfloat16")
        return cast_experts(values, granularity, recipe, transpose=True)
    scale = weight.scale
    if granularity == "128x128":
        scale = _by_expert(weight).transpose(1, 2).contiguous()
    return ScaledTensor(weight.data.transpose(1, 2).contiguous(), scale, granularity)


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
    data = torch.stack([matrix.data for matrix in scaled])
    scale = torch.stack([matrix.scale for matrix in scaled])
    granularity = scaled[0].granularity
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
    data = torch.cat((gate.data, up.data), dim=1)
    return ScaledTensor(data, torch.cat((gate.scale, up.scale), dim=1), gate.granularity)


def _are_apart(granularity: str, rows: int) -> bool:
    """Whether in one cast of all experts no unit of scales is of two of them."""
    return granularity in ("channel", "1x128") or (granularity == "128x128" and rows % 128 == 0)


def _by_expert(weight: ScaledTensor) -> Tensor:
    """The scales [experts, …], also where a cast has put all squares below each other."""
    scale: Tensor = weight.scale
    if weight.granularity == "128x128" and scale.dim() == 2:
        return scale.view(weight.shape[0], -1, scale.shape[1])
    return scale
