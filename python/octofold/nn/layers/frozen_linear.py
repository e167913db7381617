"""The base of linear layers whose weight stays FP8: everything except their product."""

from typing import Self

import torch
from torch import Tensor
from torch.nn import Parameter

from ..._core.formats import FormatLike, format_of
from ..._ops.quantize import quantize
from ..autograd.fitting import require_features
from .fp8_weight import Fp8Weight, linear_of


class FrozenLinear(Fp8Weight):
    """x · weightᵀ (+ bias) with a frozen weight in FP8, and a bias that is a parameter.

    in_features, out_features, bias, device: as in torch.nn.Linear.
    dtype: of the bias; it need not be that of x.
    format: how the weight is cast, an octofold.Format or its words.

    A new layer is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Weight.
    Raises InvalidArgumentError, which names the argument.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        format: FormatLike = "128x128",
    ) -> None:
        require_features(self.own_name, in_features, out_features)
        self._format = format_of(self.own_name, format)
        super().__init__(in_features, out_features, False, device, dtype, self._format)
        if bias:
            empty = torch.empty(out_features, device=device, dtype=dtype)
            self.hold(self.scaled_weight, Parameter(empty))

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, format: FormatLike = "128x128") -> Self:
        """Make the twin of a torch.nn.Linear with its weight cast. The bias is shared."""
        operation = f"{cls.own_name}.from_linear"
        linear = linear_of(operation, linear)
        format = format_of(operation, format)
        layer = cls(linear.in_features, linear.out_features, False, "meta", format=format)
        layer.hold(quantize(linear.weight.detach(), format), linear.bias)
        return layer.train(linear.training)

    def recast(self, weight: Tensor) -> None:
        self.hold(quantize(weight, self._format), self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, granularity={self._granularity}, dtype={self.weight.dtype}"
