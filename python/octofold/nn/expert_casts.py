"""Casts of experts' weights [experts, out, in], each expert's as if it were a layer alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .._core.ops import quick_scale_shape
from .._core.torch import DTYPES
from ..casts import quantize, quantize_both
from ..errors import invalid_argument
from ..scaled_tensor import ScaledTensor
from .recipes import Recipe


def cast_experts(
    weight: Tensor, rows: str | None, transposed: str | None, recipe: Recipe
) -> tuple[ScaledTensor | None, ScaledTensor | None]:
    """weight [experts, out, in] and the transposes [experts, in, out], at these granularities
    (None: not at all), with the scales that grouped_gemm() takes: [experts, …] of each one's own.
    Squares that are no two experts' are cast from one read."""
    weight = weight if weight.is_contiguous() else weight.contiguous()
    experts, out_features, _ = weight.shape
    if rows == transposed == "128x128" and out_features % 128 == 0:
        power_of_two, profile = recipe.power_of_two, recipe.profile
        whole, whole_transpose = quantize_both(
            weight, recipe.weight_dtype, rows, power_of_two, "saturate", profile
        )
        return _by_expert(whole), _transposes(whole_transpose, experts)
    return (
        None if rows is None else _cast(weight, rows, recipe, False),
        None if transposed is None else _cast(weight, transposed, recipe, True),
    )


def _cast(weight: Tensor, granularity: str, recipe: Recipe, transpose: bool) -> ScaledTensor:
    experts, out_features, in_features = weight.shape
    dtype, power_of_two, profile = recipe.weight_dtype, recipe.power_of_two, recipe.profile
    options = granularity, power_of_two, "saturate", profile, transpose
    are_squares_apart = granularity == "128x128" and out_features % 128 == 0
    if are_squares_apart or (granularity in ("channel", "1x128") and not transpose):
        whole = quantize(weight, dtype, *options)
        return _transposes(whole, experts) if transpose else _by_expert(whole)
    shape = (in_features, out_features) if transpose else (out_features, in_features)
    data = weight.new_empty((experts, *shape), dtype=DTYPES[dtype])
    scale = weight.new_empty((experts, *quick_scale_shape(granularity, shape)), dtype=torch.float32)
    for one, codes, units in zip(weight.unbind(), data.unbind(), scale.unbind(), strict=True):
        quantize(one, dtype, *options, out=ScaledTensor(codes, units, granularity))
    return ScaledTensor(data, scale.flatten() if granularity == "tensor" else scale, granularity)


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
        scale = _scale_by_expert(weight).transpose(1, 2).contiguous()
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


def _by_expert(weight: ScaledTensor) -> ScaledTensor:
    """With scales [experts, …], also where a cast has put all squares below each other."""
    return ScaledTensor(weight.data, _scale_by_expert(weight), weight.granularity)


def _scale_by_expert(weight: ScaledTensor) -> Tensor:
    scale: Tensor = weight.scale
    if weight.granularity == "128x128" and scale.dim() == 2:
        return scale.view(weight.shape[0], -1, scale.shape[1])
    return scale


def _transposes(whole: ScaledTensor, experts: int) -> ScaledTensor:
    """[experts, in, out] of the transpose [in, experts · out] in squares: copied by rows."""
    in_features = whole.shape[0]
    wide = whole.data.view(torch.int64)  # rows are multiples of 128 bytes
    data = wide.view(in_features, experts, -1).transpose(0, 1).contiguous()
    scale = whole.scale.view(whole.scale.shape[0], experts, -1).transpose(0, 1).contiguous()
    return ScaledTensor(data.view(whole.data.dtype), scale, "128x128")
