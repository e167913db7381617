"""The base of linear layers whose weight stays FP8: everything except their product."""

from typing import Any, Final, Self

import torch
from torch import Tensor

from ..._core.dtypes import FP8, dtype_name
from ..._core.errors import invalid_argument
from ..._ops.casts import quantize
from .fp8_weight import Fp8Weight, linear_of

_GRANULARITIES: Final = ("tensor", "channel", "1x128", "128x128")


class FrozenLinear(Fp8Weight):
    """x · weightᵀ (+ bias) with a frozen weight in FP8, and a bias that is a parameter.

    in_features, out_features, bias, device: as in torch.nn.Linear.
    dtype: of the bias; it need not be that of x.
    granularity, weight_dtype: of the weight's scales and codes, as in octofold.quantize().

    A new layer is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Weight.
    Raises InvalidArgumentError, which names the argument.
    """

    trains_bias = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        granularity: str = "128x128",
        weight_dtype: str = "e4m3",
    ) -> None:
        codes = require_cast(self.own_name, granularity, weight_dtype)
        super().__init__(in_features, out_features, bias, device, dtype, granularity, codes)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, granularity: str = "128x128", weight_dtype: str = "e4m3"
    ) -> Self:
        """Make the twin of a torch.nn.Linear with its weight cast. The bias is shared."""
        operation = f"{cls.own_name}.from_linear"
        linear = linear_of(operation, linear)
        codes = require_cast(operation, granularity, weight_dtype)
        weight = quantize(linear.weight.detach(), codes, granularity)
        options = {"granularity": granularity, "weight_dtype": codes}
        return cls.twin_of(linear, weight, linear.bias, **options)

    def recast(self, weight: Tensor) -> None:
        self.hold(quantize(weight, self.weight.dtype, self._granularity), self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, granularity={self._granularity}, dtype={self.weight.dtype}"


def require_cast(operation: str, granularity: object, weight_dtype: Any) -> str:
    """That these are of a cast: octofold's name of the dtype."""
    if granularity not in _GRANULARITIES:
        expected = f"one of {', '.join(_GRANULARITIES)}"
        raise invalid_argument(operation, "granularity", expected, repr(granularity))
    return dtype_name(operation, "weight_dtype", weight_dtype, FP8)
