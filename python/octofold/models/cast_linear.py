"""A linear layer with an FP8 weight that computes in the dtype of its input."""

from typing import Final

from torch import Tensor

from ..nn.autograd.fitting import require_input
from ..nn.autograd.linear import result_dtype
from ..nn.layers.fp8_weight import FrozenLinear
from .layerwise.products import linear_of_codes

_NAME: Final = "octofold.models.CastLinear"


class CastLinear(FrozenLinear):
    """x · weightᵀ (+ bias) with a frozen weight in FP8. Each forward dequantizes the weight to the
    dtype of x and drops the copy. The layer saves memory alone, on any device and for x of any
    dtype.

    The arguments are those of octofold.nn.WeightOnlyLinear, and the buffers those of its Fp8Weight.
    forward: x [..., in] of bfloat16, float16 or float32 to [..., out] in its dtype, or in
    autocast's under autocast. There are gradients by x, and by a bias that is a parameter.
    Raises InvalidArgumentError, which names the argument.
    """

    own_name = _NAME

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        x = input.to(result_dtype(input))
        return linear_of_codes(x, self.scaled_weight, self.bias, native=False)
