"""A linear layer that keeps its weight in FP8 and computes in the dtype of its input."""

from typing import Any, Final, Self

import torch
from torch import Tensor

from ..casts import quantize
from ..nn.fitting import require_input
from ..nn.fp8_weight import Fp8Weight, linear_of
from ..nn.functional import result_dtype
from ..nn.weight_only import require_cast

_NAME: Final = "octofold.models.CastLinear"


class CastLinear(Fp8Weight):
    """x · weightᵀ (+ bias) with a frozen weight in FP8 that each forward dequantizes to the dtype
    of x and forgets: for memory alone, on any device and for x of any dtype.

    Made by from_linear(). Its buffers are those of Fp8Weight.
    forward: x [..., in] of bfloat16, float16 or float32 to [..., out] in its dtype, in autocast's
    under autocast. Gradients are those by x and by a bias that is a parameter.
    Raises InvalidArgumentError that names the argument.
    """

    own_name = _NAME

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, granularity: str = "128x128", weight_dtype: str = "e4m3"
    ) -> Self:
        """The twin of a torch.nn.Linear with its weight cast. The bias is shared."""
        operation = f"{_NAME}.from_linear"
        linear = linear_of(operation, linear)
        codes = require_cast(operation, granularity, weight_dtype)
        size = linear.in_features, linear.out_features
        layer = cls(*size, False, "meta", None, granularity, codes)
        layer.hold(quantize(linear.weight.detach(), codes, granularity), linear.bias)
        return layer.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        dtype = result_dtype(input)
        weight: Any = self.scaled_weight.dequantize(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return torch.nn.functional.linear(input.to(dtype), weight, bias)
