"""Activations and their gradients in FP64, from their papers' formulas.

SiLU and its GLU: "GLU Variants Improve Transformer" (arXiv:2002.05202); GELU and its tanh form:
"Gaussian Error Linear Units" (arXiv:1606.08415); ReLU²: "Primer" (arXiv:2109.08668).
"""

import math

import numpy as np

GATED = ("swiglu", "geglu-tanh", "geglu")
ACTIVATIONS = (*GATED, "silu", "gelu", "gelu-tanh", "relu-squared")

_erf = np.vectorize(math.erf, otypes=[np.float64])


def curve(activation, x):
    """f and its derivative, of f(x) or f(gate) · up."""
    if activation in ("swiglu", "silu"):
        sigmoid = 1 / (1 + np.exp(-x))
        return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))
    if activation in ("geglu", "gelu"):
        distribution = (1 + _erf(x / math.sqrt(2))) / 2
        return x * distribution, distribution + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if activation in ("geglu-tanh", "gelu-tanh"):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        inner_slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
        bent = np.tanh(inner)
        return x * (1 + bent) / 2, (1 + bent) / 2 + x / 2 * (1 - bent**2) * inner_slope
    positive = np.maximum(x, 0)
    return positive**2, 2 * positive


def _gate_and_up(x, activation, layout):
    """Slices of the last dimension."""
    if activation not in GATED:
        return slice(None), None
    if layout == "interleaved":
        return slice(0, None, 2), slice(1, None, 2)
    half = x.shape[-1] // 2
    return slice(0, half), slice(half, None)


def activation(x, name, layout):
    x = x.astype(np.float64)
    gate, up = _gate_and_up(x, name, layout)
    value, _ = curve(name, x[..., gate])
    return value if up is None else value * x[..., up]


def activation_gradient(gradient, x, name, layout):
    x, gradient = x.astype(np.float64), gradient.astype(np.float64)
    gate, up = _gate_and_up(x, name, layout)
    value, slope = curve(name, x[..., gate])
    result = np.empty_like(x)
    if up is None:
        return gradient * slope
    result[..., gate] = gradient * slope * x[..., up]
    result[..., up] = gradient * value
    return result
