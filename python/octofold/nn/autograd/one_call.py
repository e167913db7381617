"""The linear layer in one call of the library each way, where torch need not know of what is in it.

The bits are those of casts and products one after another (linear.py), which is the way of all
else: recipes that keep a state or leave a product in high precision, ranks, compilers, modes.
"""

from typing import Any, Final

import torch
from torch import Tensor

from ..._core.recipe import Recipe
from ..._core.torch import increment_version
from ..._core.torch_ops import PLAIN_TYPES, torch_is_watching
from ..._ops.linear_passes import Passes, Wanted, memory, passes_of
from ..casting.casts import WeightCasts, walkable
from .first_order import refuse_in_backward
from .main_grad import mark_gradient
from .products import addable

_NOTHING: Final[Wanted] = False, False, False
_is_grad_enabled: Final = torch.is_grad_enabled
_empty: Final = torch.empty


def linear_in_one_call(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts | None,
    main_grad: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """linear_with_casts() of an x [..., in] whose rows one stride walks; None where that is to be
    done otherwise. `casts`: of the weight, where somebody holds them."""
    if torch_is_watching() or not (_is_plain(x) and (bias is None or _is_plain(bias))):
        return None
    rows, transposed = casts or (None, None)
    if rows is None and not _is_plain(weight):
        return None
    wanted = _NOTHING
    if _is_grad_enabled():
        of_bias = bias is not None and bias.requires_grad
        wanted = x.requires_grad, weight.requires_grad, of_bias
        if rows is not None and wanted[0] and transposed is None:
            return None
    tokens = x.numel() // x.shape[-1]
    passes = passes_of(tokens, weight.shape, recipe, wanted, rows is not None, x.device)
    if passes is None:
        return None
    if wanted == _NOTHING:
        return _forward(passes, x, weight, bias, casts, dtype)[0]
    y: Tensor = _OneCall.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, passes, casts, main_grad, dtype
    )
    return y


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory is all there is to know of it."""
    return type(tensor) in PLAIN_TYPES and not tensor.is_neg() and not tensor.is_meta


def _forward(
    passes: Passes,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    casts: WeightCasts | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """y, and what is kept for backward."""
    y = _empty((*x.shape[:-1], weight.shape[0]), dtype=dtype, device=x.device)
    kept = memory(passes.kept, x)
    given, scale = weight, None
    if casts is None:
        given = walkable(weight)
    else:
        rows = casts[0]
        assert rows is not None
        given, scale = rows.data, rows.scale
    passes.forward(
        x,
        given,
        scale,
        addable(bias, dtype),
        y,
        kept,
        memory(passes.forward_workspace, x),
        None,
    )
    return y, kept


class _OneCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        passes: Passes,
        casts: WeightCasts | None,
        main_grad: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        y, kept = _forward(passes, x, weight, bias, casts, dtype)
        transposed = None if casts is None else casts[1]
        if transposed is None:
            ctx.save_for_backward(kept)
        else:
            ctx.save_for_backward(kept, transposed.data, transposed.scale)
        ctx.passes, ctx.main_grad = passes, main_grad
        ctx.weight = None if main_grad is None else weight
        ctx.x_shape, ctx.x_dtype = x.shape, x.dtype
        ctx.weight_shape, ctx.weight_dtype = weight.shape, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("linear", dy)
        kept, *transposed = ctx.saved_tensors
        passes: Passes = ctx.passes
        dy = walkable(dy.resolve_neg() if dy.is_neg() else dy)
        device, main_grad = dy.device, ctx.main_grad
        dx = dw = db = None
        if passes.wanted[0]:
            dx = _empty(ctx.x_shape, dtype=ctx.x_dtype, device=device)
        if main_grad is not None:
            dw = main_grad
        elif passes.wanted[1]:
            dw = _empty(ctx.weight_shape, dtype=ctx.weight_dtype, device=device)
        if passes.wanted[2]:
            db = _empty(ctx.weight_shape[:1], dtype=ctx.bias_dtype, device=device)
        passes.backward(
            dy,
            *(transposed or (None, None)),
            kept,
            dx,
            dw,
            db,
            memory(passes.backward_workspace, dy),
            main_grad is not None,
            None,
        )
        if main_grad is not None:
            increment_version((main_grad,))
            mark_gradient(ctx.weight)
            dw = None
        return dx, dw, db, None, None, None, None
