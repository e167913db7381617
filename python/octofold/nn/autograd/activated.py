"""The activation between two linear layers: its casts, and itself where no cast will do."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import AnyCasts
from ..._ops.cast_sources import GATED, ActivationGradient
from ..casting.casts import cast_as_wanted
from .products import gradient_formats

ACTIVATIONS: Final = (*GATED, "silu", "gelu", "gelu-tanh", "relu-squared")
_CURVES: Final = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "swiglu-oss": "oss"}
"""Of a gated one: what its gate goes through."""


def _oss() -> tuple[float, float]:
    """Slope and limit. A module's numbers are variables to torch.compile(dynamic=True), which then
    fails where two functions with gradients read the same."""
    return 1.702, 7.0


def is_gated(activation: str) -> bool:
    """Whether it takes gate and up, one half of the features each."""
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


def activated(x: Tensor, activation: str) -> Tensor:
    """activation(x) in the dtype of x, differentiable, as torch has it."""
    if is_gated(activation):
        gate, up = x.chunk(2, dim=-1)
        return _curve(gate, _CURVES[activation]) * _factor(up, activation)
    return _curve(x, activation)


def activated_gradient(dh: Tensor, x: Tensor, activation: str) -> Tensor:
    """The gradient by x of activated(x), in the dtype of x."""
    if not is_gated(activation):
        return _curve_gradient(dh, x, activation)
    gate, up = x.chunk(2, dim=-1)
    curve = _CURVES[activation]
    by_gate = _curve_gradient(dh * _factor(up, activation), gate, curve)
    by_up = dh * _curve(gate, curve)
    if activation == "swiglu-oss":
        by_up = torch.where(up.abs() > _oss()[1], 0, by_up)
    return torch.cat((by_gate, by_up), dim=-1)


def _factor(up: Tensor, activation: str) -> Tensor:
    """What a gate's curve is multiplied by."""
    if activation != "swiglu-oss":
        return up
    _, limit = _oss()
    return up.clamp(-limit, limit) + 1


def _curve(x: Tensor, name: str) -> Tensor:
    if name == "silu":
        return functional.silu(x)
    if name == "relu-squared":
        return functional.relu(x).square()
    if name == "oss":
        slope, limit = _oss()
        x = x.clamp(max=limit)
        return x * torch.sigmoid(slope * x)
    return functional.gelu(x, approximate=_approximation(name))


def _curve_gradient(dy: Tensor, x: Tensor, name: str) -> Tensor:
    dx: Tensor
    if name == "silu":
        dx = torch.ops.aten.silu_backward(dy, x)
    elif name == "relu-squared":
        dx = 2 * functional.relu(x) * dy
    elif name == "oss":
        slope, limit = _oss()
        part = torch.sigmoid(slope * x)
        dx = torch.where(x > limit, 0, dy * (part + slope * x * part * (1 - part)))
    else:
        dx = torch.ops.aten.gelu_backward(dy, x, approximate=_approximation(name))
    return dx


def _approximation(name: str) -> str:
    return "tanh" if name == "gelu-tanh" else "none"
