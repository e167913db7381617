"""The transpose of a weight whose FP8 codes are all that there is."""

from typing import Any

from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import cast
from ..._ops.transpose import transpose


def transposed_weight(weight: ScaledTensor, recipe: Recipe) -> ScaledTensor:
    """The transpose of an FP8 weight [out, in], or of each of [experts, out, in], as the product
    dY · weight of the recipe takes it: the same values where squares or all numbers share a scale,
    else cast from the values in bfloat16."""
    assert recipe.grad_input is not None
    granularity = recipe.grad_input.b.granularity
    matrices = weight.shape[0] if len(weight.shape) == 3 else None
    if granularity != weight.granularity or granularity not in ("tensor", "128x128"):
        values: Tensor = weight.dequantize("bfloat16")
        transposed: Any = cast(values, transposed=recipe.grad_input.b, matrices=matrices).transposed
        assert isinstance(transposed, ScaledTensor)
        return transposed
    scale = weight.scale
    if granularity == "128x128":
        if matrices is not None and scale.dim() == 2:  # of a cast of all experts' rows, one below
            scale = scale.view(matrices, -1, scale.shape[1])  # the other
        scale = scale.transpose(-2, -1).contiguous()
    return ScaledTensor(transpose(weight.data), scale, granularity)
