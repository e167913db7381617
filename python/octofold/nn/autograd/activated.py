"""The activation between two linear layers: its casts, and itself where no cast will do."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import GATED, ActivationGradient
from ..._ops.quantize import quantize
from ..casting.casts import cast_as_wanted
from ..recipes.kernels import has_kernels
from .products import gradient_formats

ACTIVATIONS: Final = (*GATED, "silu", "gelu", "gelu-tanh", "relu-squared")
_CURVES: Final = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "swiglu-oss": "oss"}
"""For each gated activation, the function that its gate goes through."""
# swiglu-oss's slope and limit are written out: a module's numbers are variables to
# torch.compile(dynamic=True), which fails where two functions with gradients read them.


def is_gated(activation: str) -> bool:
    """True if the activation takes gate and up, one half of the features each."""
    return activation in GATED


def cast_activation_gradient(
    dh: Tensor,
    gate_up: Tensor | ScaledTensor,
    activation: str,
    recipe: Recipe,
    for_input: bool,
    for_weight: bool,
    for_bias: bool,
) -> AnyCasts:
    """Casts of the gradient by gate_up, and of its transpose, as far as the products that go back
    from it are wanted and in FP8; with the sums for a bias, where there is a cast."""
    formats = gradient_formats(recipe, for_input, for_weight)
    columns = "sums" if for_bias else None
    return cast_as_wanted(ActivationGradient(dh, gate_up, activation), *formats, columns=columns)


def as_it_waits(x: Tensor, recipe: Recipe, keep_fp8: bool) -> Tensor | ScaledTensor:
    """The input of an activation, as it is kept for backward: perhaps in FP8."""
    if not keep_fp8:
        return x
    assert recipe.output is not None
    return quantize(x, Format(granularity="1x128", rule=recipe.output.a.rule))


def wide(x: Tensor | ScaledTensor, dtype: torch.dtype) -> Tensor:
    """In high precision: of FP8 the values, in this dtype."""
    values: Tensor = x.dequantize(dtype) if isinstance(x, ScaledTensor) else x
    return values


def activated(x: Tensor, activation: str) -> Tensor:
    """activation(x) in the dtype of x, differentiable, as torch has it."""
    if is_gated(activation):
        gate, up = x.chunk(2, dim=-1)
        factor = up.clamp(-7.0, 7.0) + 1 if activation == "swiglu-oss" else up
        return _curve(gate, _CURVES[activation]) * factor
    return _curve(x, activation)


def activated_gradient(dh: Tensor, x: Tensor, activation: str) -> Tensor:
    """The gradient by x of activated(x), in the dtype of x."""
    if not is_gated(activation):
        return _curve_gradient(dh, x, activation)
    gate, up = x.chunk(2, dim=-1)
    curve = _CURVES[activation]
    if activation == "swiglu-oss":
        by_up = torch.where(up.abs() > 7.0, 0, dh * _curve(gate, curve))
        factor = up.clamp(-7.0, 7.0) + 1
        return torch.cat((_curve_gradient(dh * factor, gate, curve), by_up), dim=-1)
    return torch.cat((_curve_gradient(dh * up, gate, curve), dh * _curve(gate, curve)), dim=-1)


def _curve(x: Tensor, name: str) -> Tensor:
    if name == "silu":
        return functional.silu(x)
    if name == "relu-squared":
        return functional.relu(x).square()
    if name == "oss":
        x = x.clamp(max=7.0)
        return x * torch.sigmoid(1.702 * x)
    return functional.gelu(x, approximate=_approximation(name))


def _curve_gradient(dy: Tensor, x: Tensor, name: str) -> Tensor:
    dx: Tensor
    if name == "silu":
        dx = torch.ops.aten.silu_backward(dy, x)
    elif name == "relu-squared":
        dx = 2 * functional.relu(x) * dy
    elif name == "oss":
        part = torch.sigmoid(1.702 * x)
        slope = part + 1.702 * x * part * (1 - part)
        dx = torch.where(x > 7.0, 0, dy * slope)
    else:
        dx = torch.ops.aten.gelu_backward(dy, x, approximate=_approximation(name))
    return dx


def _approximation(name: str) -> str:
    return "tanh" if name == "gelu-tanh" else "none"


def gated_in_one(
    recipe: Recipe,
    activation: str,
    weight: ScaledTensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> bool:
    """True if the first product, the activation and the cast can be one operation, of a weight
    [..., 2·hidden, in] without gradients: gated_gemm(), of experts with groups."""
    output = recipe.output
    if output is None or weight is None:
        return False
    fits_kernel = not weight.data.is_cuda or (
        weight.shape[-2] % 256 == 0
        and weight.shape[-1] % 16 == 0
        and has_kernels("gated products", weight.data.device)
    )
    return (
        (output.a.granularity, output.b.granularity) == ("1x128", "128x128")
        and is_gated(activation)
        and bias is None
        and dtype == torch.bfloat16
        and fits_kernel
    )
