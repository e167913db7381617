"""Products of a stored weight, and what autograd keeps of them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from ..nn.functional import linear_with_casts, refuse_second_derivatives
from ..nn.products import bias_gradient
from ..nn.recipes import Product, Recipe
from ..nn.recipes import blockwise as _blockwise
from ..scaled_tensor import ScaledTensor
from .layerwise_storage import from_storage

_RECIPES: Final = {
    torch.float8_e4m3fn: Recipe(output=_blockwise.output, grad_input=None, grad_weight=None),
    torch.float8_e5m2: Recipe(
        output=Product("1x128", "128x128"), grad_input=None, grad_weight=None, weight_dtype="e5m2"
    ),
}
"""By the weight's dtype. x is cast to e4m3 with a scale for 128 of its values."""


def native_linear(x: Tensor, weight: ScaledTensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ (+ bias) of FP8 with FP8, in the dtype of x (autocast's where it is on). The
    gradient by x is that of the product with x as it is, from a copy of the weight."""
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        y: Tensor = _NativeLinear.apply(  # type: ignore[no-untyped-call]
            x, bias, weight.data, weight.scale
        )
        return y
    return _native(x, weight, bias)


def forgetting(
    copy: Tensor, codes: Tensor, scale: Tensor, granularity: str
) -> AbstractContextManager[Any]:
    """In which autograd keeps the codes instead of this copy of them, and makes another copy when
    backward needs it: or training adapters would hold all weights in 16 bits at once."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # which recomputes by itself
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


def _native(x: Tensor, weight: ScaledTensor, bias: Tensor | None) -> Tensor:
    recipe = _RECIPES[weight.data.dtype]
    return linear_with_casts(x, weight.data, bias, recipe, (weight, None))


class _NativeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, codes: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(codes, scale)
        ctx.x_dtype = x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _native(x, ScaledTensor(codes, scale, "128x128"), bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("models.enable_layerwise_casting")
        codes, scale = ctx.saved_tensors
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        dx = db = None
        if needs_x:
            dx = (dy @ from_storage(codes, scale, "128x128", dy.dtype)).to(ctx.x_dtype)
        if needs_bias:
            db = bias_gradient(dy, None, ctx.bias_dtype)
        return dx, db, None, None
