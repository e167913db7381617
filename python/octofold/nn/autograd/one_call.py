"""The linear layer whose wanted products are in FP8, where torch need not know of what is in it:
layer_call.py for one layer, without records, as most of the host's time of such a call is Python's.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, in_words_of
from ..._core.recipe import Recipe
from ..._core.torch import LIBRARY_TAKES_TENSORS, increment_version
from ..._core.torch_ops import torch_is_watching
from ..._ops.layer_passes import Passes, Wanted, fits, passes_of
from ..casting.casts import WeightCasts, walkable
from .functions import memory, refuse_in_backward, save_tensors, saved_tensors
from .layer_call import are_plain
from .main_grad import mark_gradient
from .products import addable

_NOTHING: Final = False, False, False
_NAMES: Final = {"a": "x", "b": "weight", "b.scale": "weight.scale"}
"""The layer's names for the operands that the product's messages name."""
_is_grad_enabled: Final = torch.is_grad_enabled
_empty: Final = torch.empty


def linear_in_one_call(
    operation: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts | None,
    main_grad: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """linear_with_casts() of rows that casts can walk; None where layer_call.py is to do it.

    Raises InvalidArgumentError in the words of the operation.
    """
    if torch_is_watching() or not LIBRARY_TAKES_TENSORS:
        return None
    if not are_plain((x, bias) if casts is not None else (x, bias, weight)):
        return None
    wanted: Wanted = _NOTHING
    if _is_grad_enabled():
        of_bias = bias is not None and bias.requires_grad
        wanted = x.requires_grad, weight.requires_grad, of_bias
        if casts is not None and wanted[0] and casts[1] is None:
            return None
    if not fits(recipe, wanted):
        return None
    try:
        tokens = x.numel() // (x.shape[-1] or 1)
        out_features, in_features = weight.shape
        sizes = tokens, in_features, out_features
        passes = passes_of(*sizes, recipe, wanted, casts is not None, x.device)
        call = _Call(passes, casts, main_grad, dtype)
        if wanted == _NOTHING:
            return call.forward(x, weight, bias)[0]
        return _apply(x, weight, bias, call)
    except InvalidArgumentError as error:
        raise in_words_of(operation, error, _NAMES) from None


class _Call(NamedTuple):
    """A call of a layer, but for its tensors."""

    passes: Passes
    casts: WeightCasts | None
    main_grad: Tensor | None
    dtype: torch.dtype

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """y, and what is kept for backward."""
        passes, casts, _, dtype = self
        y = _empty((*x.shape[:-1], weight.shape[0]), dtype=dtype, device=x.device)
        kept = memory(passes.kept, x)
        scale = None
        if casts is None:
            weight = walkable(weight)
        else:
            rows = casts[0]
            assert rows is not None
            weight, scale = rows.data, rows.scale
        workspace = memory(passes.forward_workspace, x)
        passes.forward(x, None, weight, scale, addable(bias, dtype), y, kept, workspace, None)
        return y, kept


class _OneCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, call: _Call) -> Tensor:
        y, kept = call.forward(x, weight, bias)
        transposed = None if call.casts is None else call.casts[1]
        if transposed is None:
            save_tensors(ctx, kept)
        else:
            save_tensors(ctx, kept, transposed.data, transposed.scale)
        ctx.call = call
        ctx.shapes = x.shape, weight.shape, weight.shape[:1]
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.weight = None if call.main_grad is None else weight
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward("linear", dy)
        kept, *transposed = saved_tensors(ctx)
        passes, _, main_grad, _ = ctx.call
        dy = walkable(dy.resolve_neg() if dy.is_neg() else dy)
        adds = main_grad is not None
        of_x, of_weight, of_bias = passes.wanted
        made = of_x, of_weight and not adds, of_bias
        dx, dw, db = (
            _empty(shape, dtype=dtype, device=dy.device) if new else None
            for shape, dtype, new in zip(ctx.shapes, ctx.dtypes, made, strict=True)
        )
        workspace, place = memory(passes.backward_workspace, dy), main_grad if adds else dw
        operands = dy, *(transposed or (None, None)), kept
        passes.backward(*operands, dx, place, db, workspace, adds, None)
        if adds:
            increment_version((main_grad,))
            mark_gradient(ctx.weight)
        return dx, dw, db, None


# Function.apply() without what it does for torch.func first: no transform is active, and it takes
# the host as long as the allocation of y.
_apply: Final[Callable[..., Tensor]] = super(torch.autograd.Function, _OneCall).apply
