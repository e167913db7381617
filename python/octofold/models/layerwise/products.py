"""The product of a linear layer with a stored FP8 weight: how it is computed, by the GPU and the
number of tokens, and what autograd keeps of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from ..._core.formats import FP8, GRANULARITIES
from ..._core.library import is_batch_invariant
from ..._core.ops import row_count
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import DTYPES
from ..._info import CAST, NATIVE, WEIGHT_ONLY
from ...nn.autograd.fitting import require_input
from ...nn.autograd.functions import (
    differentiates,
    refuse_in_backward,
    result_dtype,
    save_tensors,
    saved_tensors,
)
from ...nn.autograd.linear import linear_with_casts
from ...nn.autograd.products import bias_gradient
from ...nn.layers.fp8_weight import FrozenLinear
from ...nn.layers.weight_only import weight_only_linear
from ...nn.recipes.choice import FEW_TOKENS, MOST_TOKENS
from ...nn.recipes.kernels import has_native, has_weight_only, on_gpu
from .storage import from_storage

CAST_COST: Final = 550
"""How many multiplications by FP8 units save what it takes to cast one number (3 bytes read and
written, against products of twice the rate): 577 by the rates of an H200, 495 by those of an RTX
4090. Not measured."""


def linear_compute(
    shape: Sequence[int],
    out_features: int,
    native: bool | str,
    device: torch.device,
    dtype: torch.dtype,
) -> str:
    """One of octofold._info, of x [..., in] of this shape that is computed with in `dtype`.
    "cast" is a copy of the weight in this dtype, for torch's product, whose rows are not apart.
    native: as enable_layerwise_casting() takes it. True on a GPU that has no native products, as a
    layer may be moved to, is as False."""
    if native is True and has_native(device):
        return NATIVE
    if not on_gpu(device):
        return CAST
    tokens = row_count(shape)
    weight_only = has_weight_only(device, dtype)
    if is_batch_invariant():  # whatever their number
        if native == "auto" and has_native(device):
            return NATIVE
        return WEIGHT_ONLY if weight_only else CAST
    if weight_only and tokens <= FEW_TOKENS:
        return WEIGHT_ONLY
    if native == "auto" and _gains(tokens, shape[-1], out_features) and has_native(device):
        return NATIVE
    return WEIGHT_ONLY if weight_only and tokens <= MOST_TOKENS else CAST


def _gains(tokens: int, in_features: int, out_features: int) -> bool:
    """True if casting x takes less time than a copy of the weight and what FP8 units save. Each is
    proportional to in_features, but rows that are no multiple of 16 bytes reach the tensor cores by
    threads that copy, not by TMA."""
    return in_features % 16 == 0 and (tokens + CAST_COST) * out_features >= CAST_COST * tokens


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


_CAST_LINEAR: Final = "octofold.models.CastLinear"


class CastLinear(FrozenLinear):
    """x · weightᵀ (+ bias) with a frozen weight in FP8. Each forward dequantizes the weight to the
    dtype of x and drops the copy. The layer saves memory alone, on any device and for x of any
    dtype.

    The arguments are those of octofold.nn.WeightOnlyLinear, and the buffers those of its Fp8Weight.
    forward: x [..., in] of bfloat16, float16 or float32 to [..., out] in its dtype, or in
    autocast's under autocast. There are gradients by x, and by a bias that is a parameter.
    Raises InvalidArgumentError, which names the argument.
    """

    own_name = _CAST_LINEAR

    def forward(self, input: Tensor) -> Tensor:
        require_input(_CAST_LINEAR, input, self.weight)
        x = input.to(result_dtype(input))
        return linear_of_codes(x, self.scaled_weight, self.bias, native=False)


_NATIVE: Final[dict[str, bool | str]] = {"auto": "auto", "native": True, "weight-only": False}
"""linear_compute()'s word for each `compute`."""


def fp8_linear(
    x: Tensor, weight: ScaledTensor, bias: Tensor | None, compute: str = "auto"
) -> Tensor:
    """x · weightᵀ (+ bias), in the dtype of x or in autocast's, with gradients by x and bias.

    x: [..., in] of bfloat16, float16 or float32.
    weight: [out, in], frozen, with scales of any granularity.
    compute: "native": x is cast to FP8 too, with a scale for 128 of its values, where the device
        has such products; elsewhere as "weight-only". "weight-only": x of 16 bits is taken as it
        is, and the weight's codes as they are or, for many tokens and for float32, a copy of the
        weight in the dtype of x. "auto": native on GPUs with FP8 units, for more than 16 tokens,
        where that is estimated to gain.
    """
    dtype = result_dtype(x)
    if x.dtype != dtype:
        x = x.to(dtype)
    chosen = _compute_of(x, weight, _NATIVE[compute])
    if chosen == WEIGHT_ONLY:
        return weight_only_linear(x, weight, bias)
    return linear_of_codes(x, weight, bias, chosen == NATIVE)


def _compute_of(x: Tensor, weight: ScaledTensor, native: bool | str) -> str:
    if native is True or on_gpu(x.device):
        return linear_compute(x.shape, weight.shape[0], native, x.device, x.dtype)
    # The CPU does as a GPU without FP8 units, and makes no copy of the weight.
    return WEIGHT_ONLY if has_weight_only(x.device, x.dtype) else CAST
