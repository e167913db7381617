"""The linear layer as a function with a gradient."""

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._core.errors import invalid_argument
from .._core.formats import WIDE, Format, dtype_name
from .._core.recipe import Product, Recipe, recipe_of
from .._core.scaled_tensor import ScaledTensor
from .._ops.cast import AnyCasts, Casts, cast
from .._ops.gemm import gemm
from ._calls import array_of, vary_alike, whole

Array: TypeAlias = jax.Array
_SymbolicZero: Final[Any] = jax.custom_derivatives.SymbolicZero


def linear(
    x: Array, weight: Array, bias: Array | None = None, recipe: Recipe | str = "blockwise"
) -> Array:
    """x · weightᵀ (+ bias) in FP8, differentiable by jax.grad and its like.

    x: [..., in] bfloat16, float16 or float32; zero tokens too.
    weight: [out, in] of any of these dtypes, whatever that of x.
    bias: [out], of any of these dtypes.
    recipe: an octofold.jax.Recipe or the name of one: "blockwise", "rowwise", "tensorwise",
        "rowwise_with_gw_hp".

    Returns [..., out] in the dtype of x. All three products (of the result and of both gradients)
    are FP8, as far as the recipe has them so. Gradients have the dtypes of what they belong to. For
    backward the FP8 operands are kept, x transposed and weight transposed, each cast together with
    the one that the result takes; what needs no gradient costs no product and no cast. A gradient
    of a gradient raises UnsupportedError, as jax.vmap does.
    Raises InvalidArgumentError, which names the argument, as the program is traced.
    """
    recipe = recipe_of("linear", recipe)
    x, weight = _wide("x", x), _wide("weight", weight)
    if weight.ndim != 2 or weight.size == 0:
        expected = "[out, in] with at least 1 feature each"
        raise invalid_argument("linear", "weight", expected, list(weight.shape))
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        expected = f"[..., {weight.shape[1]}] for weight {list(weight.shape)}"
        raise invalid_argument("linear", "x", expected, list(x.shape))
    if bias is not None:
        bias = _wide("bias", bias)
        if bias.shape != weight.shape[:1]:
            words = f"the features that weight {list(weight.shape)} puts out"
            raise invalid_argument(
                "linear", "bias", f"[{weight.shape[0]}], {words}", list(bias.shape)
            )
    dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
    # Outside of what has a gradient of its own, so that JAX adds up what devices share.
    x, weight, bias = vary_alike(whole((x, weight, bias)))
    y = _compiled(x if x.ndim > 1 else x[None], weight, bias, recipe, dtypes)
    return y if x.ndim > 1 else y[0]


def _wide(argument: str, value: Any) -> Array:
    array = array_of("linear", argument, value)
    dtype_name("linear", argument, array.dtype, WIDE)
    return array


_Operand: TypeAlias = Any
"""An array, for a product that a recipe has in high precision, or its transpose's codes and scales,
a pair of arrays."""
_Kept: TypeAlias = tuple[_Operand, _Operand, Array | None]
"""The residuals that backward computes with, of x, weight and bias: a scalar where nothing needs
it. JAX takes what is kept for one structure wherever it has traced the layer once (in loops,
branches, compiled functions), whatever is differentiated there."""

_DTypes: TypeAlias = tuple[Any, Any, Any]  # of x, weight and bias


def _cast(
    x: Array, rows: Format | None, transposed: Format | None, columns: str | None = None
) -> AnyCasts:
    """cast() where it may be that no product wants a cast."""
    if rows is None and transposed is None:
        return Casts(None, None)
    return cast(x, rows=rows, transposed=transposed, columns=columns)


def _multiply(product: Product, a: Any, b: Any, dtype: Any, bias: Array | None = None) -> Array:
    if bias is not None and bias.dtype != np.float32:
        bias = bias.astype(dtype)
    if isinstance(b, tuple):
        data, scale = b
        b = ScaledTensor(data, scale, product.b.granularity)
    return gemm(
        a,
        b,
        bias=bias,
        out_dtype=dtype,
        fast_accumulation=product.fast_accumulation,
        batch_invariant=product.batch_invariant,
    )


def _result(
    x: Array, weight: Array, bias: Array | None, recipe: Recipe, needs: Sequence[bool]
) -> tuple[Array, _Kept]:
    """x · weightᵀ (+ bias), and what backward needs: each operand is cast once, for both."""
    output, grad_input, grad_weight = recipe.output, recipe.grad_input, recipe.grad_weight
    for_x, for_weight, for_bias = needs
    x_rows, x_transposed, *_ = _cast(
        x,
        None if output is None else output.a,
        grad_weight.b if for_weight and grad_weight is not None else None,
    )
    weight_rows, weight_transposed, *_ = _cast(
        weight,
        None if output is None else output.b,
        grad_input.b if for_x and grad_input is not None else None,
    )
    if output is None:
        y = x @ weight.astype(x.dtype).T
        y = y if bias is None else y + bias.astype(x.dtype)
    else:
        y = _multiply(output, x_rows, weight_rows, x.dtype, bias)
    kept = (
        _operand(x, x_transposed, grad_weight, for_weight),
        _operand(weight, weight_transposed, grad_input, for_x),
        bias if bias is None or for_bias else jnp.zeros(()),
    )
    return y, kept


def _operand(
    whole: Array, transposed: ScaledTensor | None, product: Product | None, needed: bool
) -> _Operand:
    if product is None:
        return whole if needed else jnp.zeros(())
    if transposed is None:
        return jnp.zeros(()), jnp.zeros(())
    return transposed.data, transposed.scale


def _is_needed(kept: _Operand | None) -> bool:
    return any(part.ndim > 0 for part in jax.tree.leaves(kept))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _linear(x: Array, weight: Array, bias: Array | None, recipe: Recipe, dtypes: _DTypes) -> Array:
    y, _ = _result(x, weight, bias, recipe, (False, False, False))
    return y


def _forward(
    x: Any, weight: Any, bias: Any, recipe: Recipe, dtypes: _DTypes
) -> tuple[Array, _Kept]:
    """Each argument comes with whether it is differentiated."""
    needs = x.perturbed, weight.perturbed, bias is not None and bias.perturbed
    return _result(x.value, weight.value, None if bias is None else bias.value, recipe, needs)


def _backward(
    recipe: Recipe, dtypes: _DTypes, kept: _Kept, dy: Any
) -> tuple[Array | None, Array | None, Array | None]:
    if isinstance(dy, _SymbolicZero):
        return None, None, None
    x, weight, _ = kept
    for_weight, for_x, for_bias = map(_is_needed, kept)
    grad_input, grad_weight = recipe.grad_input, recipe.grad_weight
    casts = _cast(
        dy,
        grad_input.a if for_x and grad_input is not None else None,
        grad_weight.a if for_weight and grad_weight is not None else None,
        "sums" if for_bias else None,
    )
    dx = dweight = dbias = None
    if for_x and grad_input is not None:
        dx = _multiply(grad_input, casts.rows, weight, dtypes[0])
    elif for_x:
        dx = (dy @ weight.astype(dy.dtype)).astype(dtypes[0])
    if for_weight and grad_weight is not None:
        dweight = _multiply(grad_weight, casts.transposed, x, dtypes[1])
    elif for_weight:
        rows, x = (array.reshape(-1, array.shape[-1]) for array in (dy, x))
        dweight = (rows.T @ x).astype(dtypes[1])
    if for_bias:
        sums = casts.sums
        if sums is None:
            sums = dy.sum(range(dy.ndim - 1), dtype=np.float32)
        dbias = sums.astype(dtypes[2])
    return dx, dweight, dbias


_linear.defvjp(_forward, _backward, symbolic_zeros=True)
# Without jax.jit, JAX's shard_map takes no custom_vjp with symbolic zeros.
_compiled = jax.jit(_linear, static_argnums=(3, 4), inline=True)
