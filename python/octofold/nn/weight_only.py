"""A linear layer whose weight alone is FP8, with gradients by x and bias."""

from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from .._core.dtypes import FP8, dtype_name
from ..casts import quantize
from ..errors import invalid_argument
from ..gemm_weight_only import gemm_weight_only, gemm_weight_only_gradient
from ..scaled_tensor import ScaledTensor
from .casts import walkable
from .fitting import require_features, require_input
from .fp8_weight import Fp8Weight, linear_of
from .functional import refuse_second_derivatives, result_dtype
from .products import addable, bias_gradient

_NAME: Final = "octofold.nn.WeightOnlyLinear"
_GRANULARITIES: Final = ("tensor", "channel", "1x128", "128x128")


class WeightOnlyLinear(Fp8Weight):
    """x · weightᵀ (+ bias) with a frozen weight in FP8 and x in 16 bits, on GPUs with FP8 units or
    without: for weights that take half of BF16's memory, and adapters (LoRA) that are trained over
    them.

    in_features, out_features, bias, device: as of torch.nn.Linear.
    dtype: of the bias; x of either dtype goes with any.
    granularity, weight_dtype: of the weight's scales and codes, as in octofold.quantize().

    What is made so is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Weight, and its bias is a parameter.

    forward: x [..., in] of float16 or bfloat16 to [..., out] in its dtype; in autocast x of any
    dtype, to autocast's. Gradients are those by x and by bias; the weight has none. GPUs before
    compute capability 8.0 take float16 alone.
    Raises InvalidArgumentError that names the argument.
    """

    own_name = _NAME

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
        require_features(_NAME, in_features, out_features)
        codes = require_cast(_NAME, granularity, weight_dtype)
        super().__init__(in_features, out_features, False, device, dtype, granularity, codes)
        if bias:
            empty = torch.empty(out_features, device=device, dtype=dtype)
            self.hold(self.scaled_weight, Parameter(empty))

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, granularity: str = "128x128", weight_dtype: str = "e4m3"
    ) -> Self:
        """The twin of a torch.nn.Linear with its weight cast. The bias is shared."""
        operation = f"{_NAME}.from_linear"
        linear = linear_of(operation, linear)
        codes = require_cast(operation, granularity, weight_dtype)
        layer = cls(
            linear.in_features,
            linear.out_features,
            False,
            "meta",
            granularity=granularity,
            weight_dtype=codes,
        )
        weight = quantize(linear.weight.detach(), codes, granularity)
        layer.hold(weight, linear.bias)
        return layer.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        dtype = result_dtype(input)
        if dtype == torch.float32:
            expected = "float16 or bfloat16 (as the model after half() or bfloat16(), or autocast)"
            raise invalid_argument(_NAME, "x", expected, dtype)
        return weight_only_linear(input.to(dtype), self.scaled_weight, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, granularity={self._granularity}, dtype={self.weight.dtype}"


def weight_only_linear(x: Tensor, weight: ScaledTensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ (+ bias) of an x [..., in] of 16 bits, with gradients by x and bias."""
    rows = walkable(x[None] if x.dim() == 1 else x)
    y: Tensor = _WeightOnly.apply(  # type: ignore[no-untyped-call]
        rows, addable(bias, x.dtype), weight.data, weight.scale, weight.granularity
    )
    return y[0] if x.dim() == 1 else y


def require_cast(operation: str, granularity: object, weight_dtype: Any) -> str:
    """That these are of a cast: octofold's name of the dtype."""
    if granularity not in _GRANULARITIES:
        expected = f"one of {', '.join(_GRANULARITIES)}"
        raise invalid_argument(operation, "granularity", expected, repr(granularity))
    return dtype_name(operation, "weight_dtype", weight_dtype, FP8)


class _WeightOnly(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, codes: Tensor, scale: Tensor, granularity: str
    ) -> Tensor:
        ctx.save_for_backward(codes, scale)
        ctx.granularity = granularity
        ctx.bias_dtype = None if bias is None else bias.dtype
        y: Tensor = gemm_weight_only(x, ScaledTensor(codes, scale, granularity), bias)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("nn.WeightOnlyLinear")
        codes, scale = ctx.saved_tensors
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        dy = walkable(dy)
        weight = ScaledTensor(codes, scale, ctx.granularity)
        dx = gemm_weight_only_gradient(dy, weight) if needs_x else None
        db = bias_gradient(dy, None, ctx.bias_dtype) if needs_bias else None
        return dx, db, None, None, None
