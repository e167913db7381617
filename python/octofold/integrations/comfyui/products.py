"""Products of comfy-kitchen's FP8 weights with inputs of 16 or 32 bits.

comfy-kitchen calls a handler with the operation's arguments. In inference mode a linear layer is
one operation; elsewhere torch takes it apart into a transpose and aten.mm or aten.addmm, whose
gradients are aten.mm with the weight as it is.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from comfy_kitchen.tensor import QuantizedTensor
from torch import Tensor

from ..._core.scaled_tensor import ScaledTensor
from ...nn.autograd.fitting import is_fp8
from ...nn.autograd.frozen import frozen_linear, times_weight

Handler: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function of (the first argument, all arguments, those by name)."""

_aten: Final = torch.ops.aten
_WIDE: Final = (torch.float16, torch.bfloat16, torch.float32)


def handlers(own_of: Callable[[Any], Handler]) -> dict[Any, Handler]:
    """By operation, those for comfy-kitchen's table.

    own_of: comfy-kitchen's own handler of an operation, to which everything goes that is no product
        of an FP8 weight with one scale and an input of 16 or 32 bits.
    """

    def linear(first: Any, arguments: Any, options: Any) -> Any:
        x, weight, bias = (*arguments, None)[:3]
        codes = _codes(weight)
        if codes is None or options or not _is_wide(x):
            return own_of(_aten.linear.default)(first, arguments, options)
        return product(x, codes, bias)

    def mm(first: Any, arguments: Any, options: Any) -> Any:
        x, right = arguments[:2]
        codes = _codes(right)
        if codes is None or options or not _is_wide(x):
            return own_of(_aten.mm.default)(first, arguments, options)
        return _times(x, codes, None)

    def addmm(first: Any, arguments: Any, options: Any) -> Any:
        bias, x, right = arguments[:3]
        codes = _codes(right)
        if codes is None or options or not _is_wide(x) or not _is_vector(bias):
            return own_of(_aten.addmm.default)(first, arguments, options)
        return _times(x, codes, bias)

    return {_aten.linear.default: linear, _aten.mm.default: mm, _aten.addmm.default: addmm}


def product(x: Tensor, weight: ScaledTensor, bias: Tensor | None) -> Tensor:
    """x [..., in] · weight [out, in]ᵀ (+ bias [out]) in the dtype of x."""
    with torch.no_grad():  # the graph is that of the operation that this is the code of
        return frozen_linear(x, weight, bias)


def _times(x: Tensor, right: ScaledTensor, bias: Tensor | None) -> Tensor:
    """x · right [in, out] (+ bias), of a weight's transpose, or of the weight itself in a
    gradient."""
    if right.data.stride(0) == 1 and right.data.stride(1) != 1:
        return product(x, right.T, bias)
    weight = ScaledTensor(right.data.contiguous(), right.scale, right.granularity)
    with torch.no_grad():
        if bias is None:
            return times_weight(x, weight)
        return torch.addmm(bias, x, weight.dequantize(x.dtype))


def _codes(weight: object) -> ScaledTensor | None:
    """The codes and scale of comfy-kitchen's FP8 matrix with one scale; else None."""
    if not isinstance(weight, QuantizedTensor):
        return None
    data, scale = weight._qdata, weight._params.scale
    if not is_fp8(data) or data.dim() != 2 or scale.numel() != 1:
        return None
    return ScaledTensor(data, scale.reshape(1), "tensor")


def _is_wide(x: object) -> bool:
    return isinstance(x, Tensor) and not isinstance(x, QuantizedTensor) and x.dtype in _WIDE


def _is_vector(bias: object) -> bool:
    return _is_wide(bias) and isinstance(bias, Tensor) and bias.dim() == 1
