"""The linear layer of programs that hold FP8 weights themselves."""

from typing import Final

from torch import Tensor

from .._core.scaled_tensor import ScaledTensor
from .._info import CAST, NATIVE, WEIGHT_ONLY
from ..models.layerwise.products import linear_of_codes, linear_way
from ..nn.autograd.linear import result_dtype
from ..nn.layers.weight_only import weight_only_linear
from ..nn.recipes.kernels import has_weight_only, on_gpu

_NATIVE: Final[dict[str, bool | str]] = {"auto": "auto", "native": True, "weight-only": False}
"""linear_way()'s word for each way to compute."""


def fp8_linear(
    x: Tensor, weight: ScaledTensor, bias: Tensor | None, compute: str = "auto"
) -> Tensor:
    """x · weightᵀ (+ bias), in the dtype of x or in autocast's, with gradients by x and bias.

    x: [..., in] of bfloat16, float16 or float32.
    weight: [out, in], frozen, with scales of any granularity.
    compute: "native": x is cast to FP8 too, with a scale for 128 of its values, where the device
        has such products; elsewhere as "weight-only". "weight-only": x of 16 bits is taken as it
        is, and the weight's codes as they are or, for many tokens and for float32, a copy of the
        weight in the dtype of x. "auto": native on GPUs with FP8 units, for more than 16 tokens,
        where that is estimated to gain.
    """
    dtype = result_dtype(x)
    if x.dtype != dtype:
        x = x.to(dtype)
    way = _way(x, weight, _NATIVE[compute])
    if way == WEIGHT_ONLY:
        return weight_only_linear(x, weight, bias)
    return linear_of_codes(x, weight, bias, way == NATIVE)


def _way(x: Tensor, weight: ScaledTensor, native: bool | str) -> str:
    if native is True or on_gpu(x.device):
        return linear_way(x.shape, weight.shape[0], native, x.device, x.dtype)
    # The CPU does as a GPU without FP8 units, and makes no copy of the weight.
    return WEIGHT_ONLY if has_weight_only(x.device, x.dtype) else CAST
