"""A linear layer with FP8 weights and wide activations, with gradients by x and bias."""

from typing import Any, Final, Self

import torch
from torch import Tensor

from ..._core.formats import FormatLike
from ..._core.library import is_batch_invariant
from ..._core.ops import row_count
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.gemm_weight_only import gemm_weight_only, gemm_weight_only_gradient
from ..autograd.boundary import Sides, bias_on_one_rank, gather_tokens, reduce_partial
from ..autograd.fitting import require_input
from ..autograd.functions import (
    differentiates,
    refuse_in_backward,
    result_dtype,
    save_tensors,
    saved_tensors,
)
from ..autograd.products import addable, bias_gradient
from ..casting.casts import walkable
from ..recipes.choice import MOST_TOKENS, MOST_TOKENS_OF_GRADIENT, MOST_TOKENS_OF_WARPGROUPS
from ..recipes.kernels import has_warpgroups, has_weight_only, on_gpu
from .fp8_weight import FrozenLinear

_NAME: Final = "octofold.nn.WeightOnlyLinear"


class WeightOnlyLinear(FrozenLinear):
    """x · weightᵀ (+ bias) with a frozen weight in FP8 and x in 16 bits, on GPUs with FP8 units or
    without. The weight takes half of BF16's memory, and adapters (LoRA) can be trained over it.

    in_features, out_features, bias, device: as in torch.nn.Linear.
    dtype: of the bias; it need not be that of x.
    format: how the weight is cast, an octofold.Format or its words.
    batch_invariant: a token's result, and its gradient, depend on that token alone, not on how many
        there are nor on its place (docs/batch-invariance.md). Not of float32, nor of
        bfloat16 where tensor cores have none. A property of the layer, not of its state_dict().

    A new layer is uninitialized: load_state_dict() fills it, or from_linear() makes another.
    Its buffers are those of Fp8Weight, and its bias is a parameter.

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
        super().__init__(in_features, out_features, bias, device, dtype, format=format)
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
        layer = super().from_linear(linear, format)
        layer.batch_invariant = batch_invariant
        return layer

    def forward(self, input: Tensor) -> Tensor:
        require_input(_NAME, input, self.weight)
        weight, bias, invariant = self.scaled_weight, self.own_bias(), self.batch_invariant
        x = input.to(result_dtype(input))
        return weight_only_linear(x, weight, bias, self.sides, invariant)

    def extra_repr(self) -> str:
        invariant = ", batch_invariant=True" if self.batch_invariant else ""
        return f"{super().extra_repr()}{invariant}"


def weight_only_linear(
    x: Tensor,
    weight: ScaledTensor,
    bias: Tensor | None,
    sides: Sides | None = None,
    batch_invariant: bool = False,
) -> Tensor:
    """x · weightᵀ (+ bias) of an x [..., in], with gradients by x and bias; by a copy of the weight
    in the dtype of x where there are no products with FP8 weights (float32 too). sides: where
    tokens come from and go to; they travel in the dtype of x, as nothing is cast. batch_invariant:
    as of WeightOnlyLinear."""
    if sides is not None:
        bias = None if bias is None else bias_on_one_rank(bias, sides.exit)
        entry = gather_tokens(x, sides.entry)
        partial = weight_only_linear(entry, weight, bias, None, batch_invariant)
        return reduce_partial(partial, sides.exit)
    y: Tensor
    rows, bias = walkable(x[None] if x.dim() == 1 else x), addable(bias, x.dtype)
    if differentiates("nn.WeightOnlyLinear", x, bias):
        y = _WeightOnly.apply(  # type: ignore[no-untyped-call]
            rows, bias, weight.data, weight.scale, weight.granularity, batch_invariant
        )
    else:  # autograd's way around takes the host as long as half of the product's call
        y = _product(rows, weight, bias, batch_invariant)
    return y[0] if x.dim() == 1 else y


def _product(x: Tensor, weight: ScaledTensor, bias: Tensor | None, batch_invariant: bool) -> Tensor:
    if _is_by_copy(x, MOST_TOKENS_OF_WARPGROUPS, batch_invariant):
        copy = weight.dequantize(x.dtype)
        return torch.nn.functional.linear(x, copy, None if bias is None else bias.to(x.dtype))
    y: Tensor = gemm_weight_only(x, weight, bias=bias, batch_invariant=batch_invariant)
    return y


def _is_by_copy(x: Tensor, most_on_hopper: int, batch_invariant: bool) -> bool:
    """True if a copy of the weight in the dtype of x, which is given back at once, and torch's
    product take less time than one that decodes the weight for each tile of rows, or if there is no
    other."""
    if not has_weight_only(x.device, x.dtype):
        return True
    if not on_gpu(x.device) or batch_invariant or is_batch_invariant():
        return False
    return row_count(x.shape) > (most_on_hopper if has_warpgroups(x.device) else MOST_TOKENS)


class _WeightOnly(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        codes: Tensor,
        scale: Tensor,
        granularity: str,
        batch_invariant: bool,
    ) -> Tensor:
        save_tensors(ctx, codes, scale)
        ctx.granularity, ctx.batch_invariant = granularity, batch_invariant
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(x, ScaledTensor(codes, scale, granularity), bias, batch_invariant)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("nn.WeightOnlyLinear", dy)
        codes, scale = saved_tensors(ctx)
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        dy = walkable(dy)
        weight = ScaledTensor(codes, scale, ctx.granularity)
        dx = None
        if needs_x and _is_by_copy(dy, MOST_TOKENS_OF_GRADIENT, ctx.batch_invariant):
            dx = torch.matmul(dy, weight.dequantize(dy.dtype))
        elif needs_x:
            dx = gemm_weight_only_gradient(dy, weight, batch_invariant=ctx.batch_invariant)
        db = bias_gradient(dy, None, ctx.bias_dtype) if needs_bias else None
        return dx, db, None, None, None, None
