"""A norm and a linear layer, an MLP: as functions with gradients."""

from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.recipe import Recipe, recipe_of
from .activated import ACTIVATIONS, is_gated
from .fitting import require_fitting, require_weight
from .layer import Before, Chain, Layer
from .layer_call import run
from .normed import norm_of, require_norm_fitting


def norm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm: str = "rms",
    epsilon: float = 1e-6,
    norm_bias: Tensor | None = None,
    recipe: Recipe | str = "blockwise",
) -> Tensor | tuple[Tensor, Tensor]:
    """norm(x + residual) · weightᵀ (+ bias) in FP8, differentiable. The norm is cast as it is
    computed, and is never in memory in high precision.

    x, weight, bias: as in octofold.linear().
    norm_weight, norm_bias: those of the norm, [in], of any of these dtypes, or None.
    residual: has the shape and dtype of x, to which the sum is rounded.
    norm: "rms" or "layer".
    epsilon: at least 0.
    recipe: as in octofold.linear(), with the output in FP8.

    Returns [..., out] in the dtype of x, or in autocast's; with a residual, a pair of it and
    x + residual, with which the next residual connection goes on.
    For backward x (or the sum) and 4 or 8 bytes a token are kept and, if the weight needs a
    gradient, the norm's transposed cast. "rowwise_with_gw_hp" computes the norm again instead.
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    name = "norm_linear"
    chain = Chain(name, chain_recipe_of(name, recipe), norm_of(name, norm, epsilon))
    require_fitting(name, x, weight, bias)
    require_norm_fitting(name, x, residual, norm_weight, norm_bias, weight)
    before = Before(x, residual, norm_weight, norm_bias)
    y, total = run(before, (Layer((weight,), bias, None),), chain)
    return y if residual is None else (y, total)


def mlp(
    x: Tensor,
    gate_up_weight: Tensor,
    down_weight: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "swiglu",
    recipe: Recipe | str = "blockwise",
    *,
    norm: str | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    residual: Tensor | None = None,
    epsilon: float = 1e-6,
    keep_fp8: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """activation(x · gate_upᵀ (+ bias)) · downᵀ (+ bias) in FP8, differentiable. The activation is
    cast as it is computed, and is never in memory in high precision.

    x: [..., in], as in octofold.linear().
    gate_up_weight: for a gated activation [2·hidden, in], the gate's rows first; else [hidden, in].
    down_weight: [out, hidden].
    gate_up_bias, down_bias: one number for each row of these.
    activation: "swiglu", "geglu-tanh", "geglu" (with the error function), "swiglu-oss" (gpt-oss's:
        g · sigmoid(1.702 · g) · (u + 1) of g = min(gate, 7) and u = up within ±7), or plain:
        "silu", "gelu", "gelu-tanh", "relu-squared".
    recipe: as in octofold.linear(), with the output in FP8.
    norm: "rms" or "layer": a norm of x first, as in norm_linear(), with the other arguments there.
    keep_fp8: keep the result of the first product for backward in FP8 (e4m3, 1x128 scales), half of
        the memory. Forward, with its casts, is the same bit for bit. Gradients that go through the
        activation have the error of that cast too: half a step of FP8 in each gate and up (at most
        1/16 of it, where it is not small beside the largest of its 128).

    Returns [..., out] in the dtype of x, or in autocast's; with a residual, a pair of it and
    x + residual.
    For backward are kept: the result of the first product [..., 2·hidden], as keep_fp8 says, and in
    FP8 x and the activation, transposed, for the gradients of the weights. The gradient by the
    first product's result is cast as it is computed too; it is written only where the recipe has a
    gradient in high precision. Where nothing is to be differentiated, recipes of 1x128 · 128x128
    scales without gate_up_bias have product, gated activation and cast in one kernel
    (ops.gated_gemm(), for BF16; on a GPU with `hidden` a multiple of 128 and `in` of 16).
    Raises InvalidArgumentError, which names the argument; backward raises UnsupportedError where it
    is itself to be differentiated.
    """
    name = "mlp"
    recipe = chain_recipe_of(name, recipe)
    require_activation(name, activation)
    of_norm = None if norm is None else norm_of(name, norm, epsilon)
    chain = Chain(name, recipe, of_norm, activation, keep_fp8)
    require_fitting(name, x, gate_up_weight, gate_up_bias, "gate_up_weight", "gate_up_bias")
    require_weight(name, down_weight, down_bias, "down_weight", "down_bias")
    require_hidden(name, gate_up_weight.shape[0], down_weight, activation)
    if down_weight.device != x.device:
        expected = f"a tensor on {x.device}, where gate_up_weight is"
        raise invalid_argument(name, "down_weight", expected, down_weight.device)
    require_norm_fitting(name, x, residual, norm_weight, norm_bias, gate_up_weight)
    if norm is None:
        operands = {"norm_weight": norm_weight, "norm_bias": norm_bias, "residual": residual}
        for argument, operand in operands.items():
            if operand is not None:
                raise invalid_argument(name, argument, "None without a norm", "a tensor")
    before = Before(x, residual, norm_weight, norm_bias)
    first = Layer((gate_up_weight,), gate_up_bias, None)
    y, total = run(before, (first, Layer((down_weight,), down_bias, None)), chain)
    return y if residual is None else (y, total)


def chain_recipe_of(operation: str, recipe: Recipe | str) -> Recipe:
    """A recipe for fused layers, with a cast to fuse."""
    recipe = recipe_of(operation, recipe)
    if recipe.output is None:
        expected = "one whose product 'output' is in FP8"
        raise invalid_argument(operation, "recipe", expected, str(recipe))
    return recipe


def require_activation(operation: str, activation: object) -> None:
    """One that there is a fused cast of."""
    if activation not in ACTIVATIONS:
        expected = f"one of {', '.join(ACTIVATIONS)}"
        raise invalid_argument(operation, "activation", expected, repr(activation))


def require_hidden(
    operation: str, features: int, down_weight: Tensor, activation: str, name: str = "down_weight"
) -> None:
    """Requires the second layer to take what the activation makes of the first one's features."""
    gated = is_gated(activation)
    if gated and features % 2 != 0:
        expected = f"an even number of rows, gate and up, as {activation} takes them"
        raise invalid_argument(operation, "gate_up_weight", expected, features)
    hidden = features // 2 if gated else features
    if down_weight.shape[1] != hidden:
        expected = f"[out, {hidden}], as {activation} makes {hidden} of {features} features"
        raise invalid_argument(operation, name, expected, list(down_weight.shape))
