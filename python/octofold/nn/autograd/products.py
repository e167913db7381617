"""The three products of a linear layer, from casts or in high precision as its recipe says."""

import torch
from torch import Tensor

from ..._core.formats import Format
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.gemm import gemm
from ..._ops.grouped_gemm import Rows, grouped_gemm
from ..casting.casts import joined
from .boundary import ONE_PROCESS, Boundary


def output_product(
    x: ScaledTensor | None,
    weight: ScaledTensor | None,
    bias: Tensor | None,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """x · weightᵀ (+ bias) of a recipe that has it in FP8."""
    assert recipe.output is not None
    assert x is not None
    assert weight is not None
    product = recipe.output
    y: Tensor = gemm(
        x,
        weight,
        bias=addable(bias, dtype),
        out_dtype=dtype,
        fast_accumulation=product.fast_accumulation,
        batch_invariant=product.batch_invariant,
    )
    return y


def grouped_product(
    product: Product,
    a: ScaledTensor | None,
    b: ScaledTensor | None,
    offsets: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    cast_to: Format | None = None,
) -> Tensor:
    """Rows [R, out]. cast_to: the format of the cast that takes them."""
    assert a is not None
    assert b is not None
    out = None
    if (
        cast_to is not None and cast_to.granularity == "tensor"
    ):  # which sees all rows, those too that are nobody's
        out = a.data.new_zeros((a.shape[0], b.shape[1]), dtype=dtype)
    y: Tensor = grouped_gemm(
        a,
        b,
        Rows(offsets),
        bias=addable(bias, dtype),
        out_dtype=None if out is not None else dtype,
        fast_accumulation=product.fast_accumulation,
        batch_invariant=product.batch_invariant,
        out=out,
    )
    return y


def addable(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The bias as products to this dtype add it: contiguous, in this dtype or float32."""
    # torch takes the host a tenth of a product's call to find that nothing is to be done.
    if bias is None or (bias.dtype in (dtype, torch.float32) and bias.is_contiguous()):
        return bias
    return (bias if bias.dtype == torch.float32 else bias.to(dtype)).contiguous()


def gradient_formats(
    recipe: Recipe, for_input: bool, for_weight: bool
) -> tuple[Format | None, Format | None]:
    """The formats of dY and of its transpose, as far as their products are wanted and in FP8."""
    grad_input, grad_weight = recipe.grad_input, recipe.grad_weight
    return (
        grad_input.a if for_input and grad_input is not None else None,
        grad_weight.a if for_weight and grad_weight is not None else None,
    )


def cast_gradient(
    dy: Tensor,
    recipe: Recipe,
    for_input: bool,
    for_weight: bool,
    for_bias: bool,
    boundary: Boundary = ONE_PROCESS,
) -> AnyCasts:
    """dY [..., out] and its transpose, as far as its products are wanted and in FP8, with the sums
    for a bias, where there is a cast: all tokens' casts, and this rank's sums, where `boundary` is
    one of several ranks."""
    columns = "sums" if for_bias else None
    formats = gradient_formats(recipe, for_input, for_weight)
    return boundary.cast(dy, *formats, columns, complete=True)


def input_gradient(
    dy: Tensor | None,
    dy_rows: ScaledTensor | None,
    weights: tuple[Tensor | None, ...],
    transposed: ScaledTensor | None,
    recipe: Recipe,
    dtype: torch.dtype,
) -> Tensor:
    """dY · weight. High precision needs dY itself and the weights, one below the other, FP8 the
    casts."""
    grad_input = recipe.grad_input
    if grad_input is None:
        assert dy is not None
        return torch.matmul(dy, joined(weights).to(dy.dtype)).to(dtype)
    return _product(grad_input, dy_rows, transposed, dtype)


def weight_gradient(
    dy: Tensor | None,
    dy_transposed: ScaledTensor | None,
    x: Tensor | None,
    x_transposed: ScaledTensor | None,
    recipe: Recipe,
    dtype: torch.dtype,
    added_to: Tensor | None = None,
) -> Tensor:
    """dYᵀ · x, new or added to a tensor. High precision needs dY and x themselves, FP8 neither."""
    grad_weight = recipe.grad_weight
    if grad_weight is not None:
        return _product(grad_weight, dy_transposed, x_transposed, dtype, added_to)
    assert dy is not None
    assert x is not None
    dw = as_matrix(dy).t() @ as_matrix(x)
    return dw.to(dtype) if added_to is None else added_to.add_(dw)


def bias_gradient(
    dy: Tensor | None, sums: Tensor | None, dtype: torch.dtype, boundary: Boundary = ONE_PROCESS
) -> Tensor:
    """dY summed over all tokens, and rounded to `dtype` once: `sums` where a cast has made them,
    else from dY itself."""
    if sums is None:
        assert dy is not None
        sums = as_matrix(dy).sum(0, dtype=torch.float32)
    return boundary.all_reduce(sums).to(dtype)


def as_matrix(x: Tensor) -> Tensor:
    """[..., cols] as a matrix."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _product(
    product: Product,
    a: ScaledTensor | None,
    b: ScaledTensor | None,
    dtype: torch.dtype,
    added_to: Tensor | None = None,
) -> Tensor:
    """a · bᵀ, new and of `dtype`, or added to a tensor."""
    assert a is not None
    assert b is not None
    result: Tensor = gemm(
        a,
        b,
        c=added_to,
        out_dtype=dtype if added_to is None else None,
        fast_accumulation=product.fast_accumulation,
        batch_invariant=product.batch_invariant,
        out=added_to,
    )
    return result
