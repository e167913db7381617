"""Activations and their gradients in FP64, from their papers' formulas.

SiLU and its GLU: "GLU Variants Improve Transformer" (arXiv:2002.05202); GELU and its tanh form:
"Gaussian Error Linear Units" (arXiv:1606.08415); ReLU²: "Primer" (arXiv:2109.08668); gpt-oss's
SwiGLU: swiglu() in gpt_oss/torch/model.py of github.com/openai/gpt-oss.
"""

import math

import numpy as np

GATED = ("swiglu", "geglu-tanh", "geglu", "swiglu-oss")
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
    if activation == "swiglu-oss":
        gate = np.minimum(x, 7)
        sigmoid = 1 / (1 + np.exp(-1.702 * gate))
        slope = sigmoid + 1.702 * gate * sigmoid * (1 - sigmoid)
        return gate * sigmoid, np.where(x > 7, 0, slope)
    positive = np.maximum(x, 0)
    return positive**2, 2 * positive


def factor(activation, up):
    """The factor that f(gate) is multiplied with, and its derivative."""
    if activation == "swiglu-oss":
        return np.clip(up, -7, 7) + 1, np.abs(up) <= 7
    return up, 1


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
    return value if up is None else value * factor(name, x[..., up])[0]


def activation_gradient(gradient, x, name, layout):
    x, gradient = x.astype(np.float64), gradient.astype(np.float64)
    gate, up = _gate_and_up(x, name, layout)
    value, slope = curve(name, x[..., gate])
    result = np.empty_like(x)
    if up is None:
        return gradient * slope
    of_up, slope_of_up = factor(name, x[..., up])
    result[..., gate] = gradient * slope * of_up
    result[..., up] = gradient * value * slope_of_up
    return result
