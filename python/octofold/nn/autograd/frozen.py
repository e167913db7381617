"""The linear layer whose weight is frozen in FP8: how it is computed, by the device, the dtype and
the number of tokens, with gradients by its input and its bias."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.formats import FP8, GRANULARITIES
from ..._core.library import is_batch_invariant
from ..._core.ops import row_count
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES
from ..._info import CAST, NATIVE, WEIGHT_ONLY
from ..._ops.gemm_weight_only import gemm_weight_only, gemm_weight_only_gradient
from ..casting.casts import transposed_weight, walkable
from ..casting.fp8_weight import FUNCTIONS, Fp8Weight
from ..recipes.kernels import has_native, has_warpgroups, has_weight_only, on_gpu
from .boundary import Sides, bias_on_one_rank, gather_tokens, reduce_partial, sides_of
from .fitting import require_input
from .functions import (
    differentiates,
    refuse_in_backward,
    result_dtype,
    save_tensors,
    saved_tensors,
)
from .linear import linear_with_casts
from .products import addable, bias_gradient, cast_gradient, input_gradient

_NAME: Final = "nn (a linear layer with its weight in FP8)"

FEW_TOKENS: Final = 16
"""Up to so many the weight's bytes are what takes time, and x need not be rounded: weight-only
products took 0.5 to 0.83 of torch's time at 1 and 16 rows on an H200 (docs/notes/weight-only.md),
and need no cast of x."""

_MOST_TOKENS: Final = 128
"""Up to so many weight-only products are taken where there are no native ones. Above, a copy of the
weight and torch's product are estimated to be quicker: reading and writing 3 bytes for each weight
takes as long as 130 to 220 rows lose in a kernel that reaches 0.45 of the tensor cores' rate, by
the rates of an H200, an A100 and an RTX 3050. Not measured on the latter two."""

_MOST_TOKENS_OF_WARPGROUPS: Final = 1024
_MOST_TOKENS_OF_GRADIENT: Final = 512
"""The same on Hopper, of a product and of its gradient by x, by scales of blocks at 4096,7168: 92
µs at 1024 rows where torch's product takes 76, and a copy of the weight some 20; of 512 rows of a
gradient it is estimated (docs/notes/weight-only.md)."""

_CAST_COST: Final = 550
"""How many multiplications by FP8 units save what it takes to cast one number (3 bytes read and
written, against products of twice the rate): 577 by the rates of an H200, 495 by those of an RTX
4090. Not measured."""


def linear_compute(
    shape: Sequence[int],
    out_features: int,
    device: torch.device,
    dtype: torch.dtype,
    compute: str = "auto",
    few_tokens: int | None = None,
    batch_invariant: bool = False,
) -> str:
    """How an x [..., in] of this shape and dtype is multiplied: NATIVE, WEIGHT_ONLY or CAST, by a
    copy of the weight in the dtype of x.

    compute: as of Fp8Weight. "native" on a GPU without native products, as a layer may be moved to,
        is as "weight-only". "auto" is native on GPUs alone, where that is estimated to gain.
    few_tokens: up to so many tokens of 16 bits are multiplied as they are; None: 16 with "auto",
        none with "native".
    batch_invariant: True if the number of tokens may not decide.
    """
    if compute == "copy":
        return CAST
    few = few_tokens if few_tokens is not None else FEW_TOKENS if compute == "auto" else 0
    if compute == "native" and not few and has_native(device):
        return NATIVE
    tokens, batch_invariant = row_count(shape), batch_invariant or is_batch_invariant()
    is_few = tokens <= few and not batch_invariant and has_weight_only(device, dtype)
    if compute != "weight-only" and not is_few and has_native(device):
        gains = batch_invariant or _gains(tokens, shape[-1], out_features)
        if compute == "native" or (on_gpu(device) and gains):
            return NATIVE
    by_copy = _is_by_copy(shape, device, dtype, _MOST_TOKENS_OF_WARPGROUPS, batch_invariant)
    return CAST if by_copy else WEIGHT_ONLY


def _gains(tokens: int, in_features: int, out_features: int) -> bool:
    """True if casting x takes less time than a copy of the weight and what FP8 units save. Each is
    proportional to in_features, but rows that are no multiple of 16 bytes reach the tensor cores by
    threads that copy, not by TMA."""
    return in_features % 16 == 0 and (tokens + _CAST_COST) * out_features >= _CAST_COST * tokens


def _is_by_copy(
    shape: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    most_on_hopper: int,
    batch_invariant: bool,
) -> bool:
    """True if a copy of the weight in this dtype, which is given back at once, and torch's product
    take less time than one that decodes the weight for each tile of rows, or if there is no
    other."""
    if not has_weight_only(device, dtype):
        return True
    if not on_gpu(device) or batch_invariant or is_batch_invariant():
        return False
    return row_count(shape) > (most_on_hopper if has_warpgroups(device) else _MOST_TOKENS)


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


class _How(NamedTuple):
    """All but tensors that a call needs to know. recipe: of a native product, else None."""

    granularity: str
    compute: str
    recipe: Recipe | None
    sides: Sides | None
    batch_invariant: bool


def frozen_linear(
    x: Tensor,
    weight: ScaledTensor,
    bias: Tensor | None,
    compute: str = "auto",
    *,
    recipe: Recipe | None = None,
    few_tokens: int | None = None,
    batch_invariant: bool = False,
    sides: Sides | None = None,
) -> Tensor:
    """x · weightᵀ (+ bias), in the dtype of x or in autocast's, with gradients by x and bias.

    x: [..., in] of bfloat16, float16 or float32.
    weight: [out, in], frozen, with scales of any granularity.
    compute, few_tokens, batch_invariant: as of linear_compute().
    recipe: of native products; None: x is cast with a scale for 128 of its values, and the gradient
        is that of the product with x as it is. Where a recipe has the gradient by x in FP8,
        backward casts dY, and makes the transpose of the codes each time: kept, it would take as
        much memory as the weight.
    sides: where tokens come from and go to, if the weight is a part of one (tensor parallelism).
        They travel in the dtype of x where nothing is cast.
    """
    y: Tensor
    dtype = result_dtype(x)
    how = linear_compute(
        x.shape, weight.data.shape[0], x.device, dtype, compute, few_tokens, batch_invariant
    )
    if how == NATIVE:
        recipe = recipe or _RECIPES[weight.data.dtype, weight.granularity]
    else:
        recipe, x = None, x if x.dtype == dtype else x.to(dtype)
        if sides is not None:
            bias = None if bias is None else bias_on_one_rank(bias, sides.exit)
            compute = "copy" if compute == "copy" else "weight-only"
            entry = gather_tokens(x, sides.entry)
            y = frozen_linear(entry, weight, bias, compute, batch_invariant=batch_invariant)
            return reduce_partial(y, sides.exit)
    call = _How(weight.granularity, how, recipe, sides, batch_invariant)
    if not differentiates(_NAME, x, bias):
        return _product(x, weight, bias, call)  # autograd's way takes the host half of a call
    y = _Frozen.apply(x, bias, weight.data, weight.scale, call)  # type: ignore[no-untyped-call]
    return y


def _product(x: Tensor, weight: ScaledTensor, bias: Tensor | None, how: _How) -> Tensor:
    if how.recipe is not None:
        casts = (weight, None)
        return linear_with_casts(x, weight.data, bias, how.recipe, casts, sides=how.sides)
    if how.compute == CAST:
        copy = weight.dequantize(x.dtype)
        return torch.nn.functional.linear(x, copy, None if bias is None else bias.to(x.dtype))
    rows = walkable(x[None] if x.dim() == 1 else x)
    y: Tensor = gemm_weight_only(
        rows, weight, bias=addable(bias, x.dtype), batch_invariant=how.batch_invariant
    )
    return y[0] if x.dim() == 1 else y


def times_weight(dy: Tensor, weight: ScaledTensor, batch_invariant: bool = False) -> Tensor:
    """dY [..., out] · weight [out, in] in the dtype of dY, by its codes or by a copy of it."""
    shape, device, dtype = dy.shape, dy.device, dy.dtype
    if _is_by_copy(shape, device, dtype, _MOST_TOKENS_OF_GRADIENT, batch_invariant):
        return torch.matmul(dy, weight.dequantize(dtype))
    dx: Tensor = gemm_weight_only_gradient(walkable(dy), weight, batch_invariant=batch_invariant)
    return dx


class _Frozen(torch.autograd.Function):
    """Keeps codes for backward, under torch.compile too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, codes: Tensor, scale: Tensor, how: _How
    ) -> Tensor:
        save_tensors(ctx, codes, scale)
        ctx.how, ctx.x_dtype = how, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(x, ScaledTensor(codes, scale, how.granularity), bias, how)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_in_backward(_NAME, dy)
        codes, scale = saved_tensors(ctx)
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        rows = walkable(dy[None] if dy.dim() == 1 else dy)
        dx = None
        if needs_x:
            weight = ScaledTensor(codes, scale, ctx.how.granularity)
            dx = _input_gradient(rows, weight, ctx.how, ctx.x_dtype)
            dx = dx[0] if dy.dim() == 1 else dx
        db = bias_gradient(rows, None, ctx.bias_dtype) if needs_bias else None
        if db is not None:
            db = sides_of(ctx.how.sides)[1].all_reduce(db)
        return dx, db, None, None, None


def _input_gradient(dy: Tensor, weight: ScaledTensor, how: _How, x_dtype: torch.dtype) -> Tensor:
    if how.compute == CAST:
        return torch.matmul(dy, weight.dequantize(dy.dtype))
    if how.recipe is None:
        return times_weight(dy, weight, how.batch_invariant)
    entry, exit = sides_of(how.sides)
    dtype = entry.partial_dtype or x_dtype
    if how.recipe.grad_input is None:
        dx = times_weight(exit.gather(dy, dy.shape), weight, how.batch_invariant).to(dtype)
    else:
        rows = cast_gradient(dy, how.recipe, True, False, False, boundary=exit).rows
        transposed = transposed_weight(weight, how.recipe)
        dx = input_gradient(None, rows, (None,), transposed, how.recipe, dtype)
    return entry.reduce(dx, x_dtype)


def _product_dtype(x: Tensor, weight: Fp8Weight) -> torch.dtype:
    """To compute with: autocast's where it is on."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.compute_dtype or x.dtype


def linear_of_weight(
    input: Tensor, weight: Any, bias: Tensor | None = None, sides: Sides | None = None
) -> Tensor:
    """torch.nn.functional.linear() with an Fp8Weight, as its options say; sides: as of
    frozen_linear()."""
    if not isinstance(weight, Fp8Weight):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.nn.functional.linear(input, weight, bias)
    require_input("linear", input, weight.codes)
    dtype = input.dtype if weight.compute_dtype is None else _product_dtype(input, weight)
    y = frozen_linear(
        input if input.dtype == dtype else input.to(dtype),
        weight.scaled,
        bias,
        weight.compute,
        recipe=weight.recipe,
        few_tokens=weight.few_tokens,
        batch_invariant=weight.batch_invariant,
        sides=sides,
    )
    return y if input.dtype == dtype else y.to(result_dtype(input))


def _computed_in(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A convolution in the weight's compute_dtype, of its numbers. Autograd keeps the codes."""

    def convolution(
        input: Tensor, weight: Any, bias: Tensor | None = None, *others: Any, **options: Any
    ) -> Tensor:
        x, result = input, input.dtype
        if isinstance(weight, Fp8Weight) and weight.compute_dtype is not None:
            dtype, result = _product_dtype(x, weight), result_dtype(x)
            x = x.to(dtype)
            weight = weight.named(dtype)  # for autograd: modules move no tensors that it holds
            bias = None if bias is None else bias.to(dtype)
        with torch._C.DisableTorchFunctionSubclass():
            return function(x, weight, bias, *others, **options).to(result)

    return convolution


def _embedding(input: Any, weight: Any, *others: Any, **options: Any) -> Tensor:
    """Looks up rows: only these are ever in high precision."""
    max_norm = others[1] if len(others) > 1 else options.get("max_norm")
    if max_norm is not None or not isinstance(weight, Fp8Weight):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.nn.functional.embedding(input, weight, *others, **options)
    codes = weight.codes.view(torch.uint8)[input].view(weight.codes.dtype)
    scale, granularity = weight.scale, weight.granularity
    if granularity == "128x128":
        scale, granularity = scale[input // 128], "1x128"
    elif granularity != "tensor":
        scale = scale[input]
    rows: Tensor = ScaledTensor(codes, scale, granularity).dequantize(weight.dtype)
    return rows


FUNCTIONS[torch.nn.functional.embedding] = _embedding
FUNCTIONS[torch.nn.functional.linear] = linear_of_weight
for _dimensions in "123":
    for _name in (f"conv{_dimensions}d", f"conv_transpose{_dimensions}d"):
        _function = getattr(torch.nn.functional, _name)
        FUNCTIONS[_function] = _computed_in(_function)
