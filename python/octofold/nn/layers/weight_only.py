"""A linear layer with FP8 weights and wide activations, with gradients by x and bias."""

from typing import Final, Self

import torch
from torch import Tensor

from ..._core.formats import FormatLike, format_of
from ..._ops.quantize import quantize
from ..autograd.fitting import require_input
from ..autograd.frozen import frozen_linear
from .fp8_linear import Fp8Linear, linear_of

_NAME: Final = "octofold.nn.WeightOnlyLinear"


class WeightOnlyLinear(Fp8Linear):
    """x · weightᵀ (+ bias) with a frozen weight in FP8 and x in 16 bits, on GPUs with FP8 units or
    without. The weight takes half of BF16's memory, and adapters (LoRA) can be trained over it.

    in_features, out_features, bias, device: as in torch.nn.Linear.
    dtype: of the bias; it need not be that of x.
    format: how the weight is cast, an octofold.Format or its words.
    batch_invariant: a token's result, and its gradient, depend on that token alone, not on how many
        there are nor on its place (docs/batch-invariance.md). Not of float32, nor of
        bfloat16 where tensor cores have none. A property of the layer, not of its state_dict().

    A new layer is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Linear, and its bias is a parameter.

    For many tokens a GPU multiplies by a copy of the weight in the dtype of x, made for the call,
    unless the layer is batch-invariant. So does one whose tensor cores have no bfloat16 (before
    compute capability 8.0) for bfloat16: float16 is quicker there.

    forward: x [..., in] of float16 or bfloat16 to [..., out] in its dtype; in autocast x of any
    dtype, to autocast's. float32 otherwise, as peft.prepare_model_for_kbit_training() leaves a
    model, is multiplied by a float32 copy of the weight, made for the call. There are gradients by
    x and by bias; the weight has none.
    Raises InvalidArgumentError, which names the argument.
    """

    own_name = _NAME
    trains_bias = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        format: FormatLike = "128x128",
        batch_invariant: bool = False,
    ) -> None:
        self._format = format_of(_NAME, format)
        super().__init__(in_features, out_features, bias, device, dtype, self._format)
        self.batch_invariant = batch_invariant

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        format: FormatLike = "128x128",
        *,
        batch_invariant: bool = False,
    ) -> Self:
        """Make the twin of a torch.nn.Linear with its weight cast. The bias is shared."""
        operation = f"{_NAME}.from_linear"
        linear = linear_of(operation, linear)
        format = format_of(operation, format)
        weight = quantize(linear.weight.detach(), format)
        options = {"format": format, "batch_invariant": batch_invariant}
        return cls.twin_of(linear, weight, linear.bias, **options)

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        return frozen_linear(
            input,
            self.scaled_weight,
            self.own_bias(),
            "weight-only",
            batch_invariant=self.batch_invariant,
            sides=self.sides,
        )

    def recast(self, weight: Tensor) -> None:
        self.hold(quantize(weight, self._format), self.bias)

    def extra_repr(self) -> str:
        invariant = ", batch_invariant=True" if self.batch_invariant else ""
        kind = f"granularity={self._granularity}, dtype={self.weight.dtype}{invariant}"
        return f"{super().extra_repr()}, {kind}"
