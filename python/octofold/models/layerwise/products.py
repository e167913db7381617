"""Products of a stored weight, and what autograd keeps of them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from ..._core.dtypes import FP8
from ..._core.granularity import GRANULARITIES
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES
from ...nn.autograd.first_order import differentiates, refuse_in_backward
from ...nn.autograd.flat import save_tensors, saved_tensors
from ...nn.autograd.linear import linear_with_casts
from ...nn.autograd.products import bias_gradient
from .storage import from_storage

_NAME: Final = "models (a linear layer with its weight in FP8)"
_RECIPES: Final = {
    (DTYPES[dtype], granularity): Recipe(
        output=Product("1x128 torchao", f"{dtype} {granularity} torchao"),
        grad_input=None,
        grad_weight=None,
    )
    for dtype in FP8
    for granularity in GRANULARITIES
}
"""By the weight's dtype and scales. x is cast to e4m3 with a scale for 128 of its values."""


def linear_of_codes(x: Tensor, weight: ScaledTensor, bias: Tensor | None, native: bool) -> Tensor:
    """x · weightᵀ (+ bias) in the dtype of x: of FP8 with FP8 (native), or with a copy of the
    weight in the dtype of x. Either way the gradient by x is that of the product with x as it is,
    by a copy."""
    if differentiates(_NAME, x, bias):
        y: Tensor = _Codes.apply(  # type: ignore[no-untyped-call]
            x, bias, weight.data, weight.scale, weight.granularity, native
        )
        return y
    return _product(x, weight, bias, native)


def forgetting(
    copy: Tensor, codes: Tensor, scale: Tensor, granularity: str
) -> AbstractContextManager[Any]:
    """In which autograd keeps the codes instead of this copy of them, and makes another copy when
    backward needs it: or training adapters would hold all weights in 16 bits at once. What
    torch.compile keeps it decides itself."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return nullcontext()
    address, dtype = copy.untyped_storage().data_ptr(), copy.dtype

    def pack(tensor: Tensor) -> Any:
        if tensor.dtype != dtype or tensor.untyped_storage().data_ptr() != address:
            return tensor
        return tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return from_storage(codes, scale, granularity, dtype).as_strided(*kept)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _product(x: Tensor, weight: ScaledTensor, bias: Tensor | None, native: bool) -> Tensor:
    if native:
        recipe = _RECIPES[weight.data.dtype, weight.granularity]
        return linear_with_casts(x, weight.data, bias, recipe, (weight, None))
    copy = from_storage(weight.data, weight.scale, weight.granularity, x.dtype)
    return torch.nn.functional.linear(x, copy, None if bias is None else bias.to(x.dtype))


class _Codes(torch.autograd.Function):
    """Keeps codes for backward, under torch.compile too."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        codes: Tensor,
        scale: Tensor,
        granularity: str,
        native: bool,
    ) -> Tensor:
        save_tensors(ctx, codes, scale)
        ctx.granularity = granularity
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(x, ScaledTensor(codes, scale, granularity), bias, native)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        codes, scale = saved_tensors(ctx)
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        dx = dy @ from_storage(codes, scale, ctx.granularity, dy.dtype) if needs_x else None
        db = bias_gradient(dy, None, ctx.bias_dtype) if needs_bias else None
        return dx, db, None, None, None, None
