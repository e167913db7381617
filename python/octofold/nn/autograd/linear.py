"""The linear layer as a function with a gradient."""

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.recipe import Recipe, recipe_of
from ..casting.casts import WeightCasts, walkable
from .boundary import Sides
from .fitting import require_fitting
from .functions import result_dtype
from .layer import Before, Chain, Layer
from .layer_call import run
from .main_grad import to_main_grad
from .one_call import linear_in_one_call


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, recipe: Recipe | str = "blockwise"
) -> Tensor:
    """x · weightᵀ (+ bias) in FP8, differentiable as torch.nn.functional.linear is.

    x: [..., in] bfloat16, float16 or float32, any strides; zero tokens too.
    weight: [out, in] of any of these dtypes, whatever that of x; cast in each call
        (octofold.nn.keep_casts() keeps the casts of an octofold.nn.Linear).
    bias: [out], of any of these dtypes.
    recipe: an octofold.nn.Recipe or the name of one: "blockwise", "rowwise", "tensorwise",
        "rowwise_with_gw_hp".

    Returns [..., out] in the dtype of x, or in autocast's. Gradients have the dtypes of what they
    belong to. For backward the FP8 operands are kept: x transposed and weight transposed; x itself
    only where the recipe has the weight gradient in high precision. What needs no gradient costs no
    product and no cast. NaN and infinities make NaN of everything that shares a scale with them.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    recipe = recipe_of("linear", recipe)
    require_fitting("linear", x, weight, bias)
    return linear_with_casts(x, weight, bias, recipe, None)


def linear_with_casts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Recipe,
    casts: WeightCasts | None,
    main_grad: Tensor | None = None,
    sides: Sides | None = None,
    operation: str = "linear",
) -> Tensor:
    """linear(), with the casts of the weight; None: they are yet to be made. Where the transposed
    one is missing backward makes it, of the weight as it is then.

    main_grad: float32 [out, in]: the weight's gradient is added to it, and weight.grad left alone.
    sides: where tokens come from and go to, if the weight is a part of one (tensor parallelism).
    operation: the name in errors. Arguments that do not fit are the library's, if not here alone.
    """
    if recipe.output is None:
        require_fitting(operation, x, weight, bias)  # torch says it otherwise
        if recipe.grad_input is None and recipe.grad_weight is None and sides is None:
            return wide_linear(x, weight, bias, main_grad, result_dtype(x))
    if sides is None and x.dim() > 1:
        how = recipe, casts, main_grad, result_dtype(x)
        y = linear_in_one_call(operation, walkable(x), weight, bias, *how)
        if y is not None:
            return y
    layer = Layer((weight,), bias, casts, (main_grad,))
    return run(Before(x), (layer,), Chain(operation, recipe, sides=sides))[0]


def wide_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, main_grad: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """linear_with_casts() by torch, in this dtype."""
    weight = to_main_grad(weight, main_grad, dtype)
    return functional.linear(x.to(dtype), weight, None if bias is None else bias.to(dtype))
