"""Helpers of tests of fused layers: calls with fresh leaves, the same in FP64, what was cast."""

import math

import torch

from tests.python.nn.layer_support import random

functional = torch.nn.functional

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CURVES = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu-squared": lambda x: functional.relu(x).square(),
}
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "swiglu-oss": None}


def activation(x, name):
    if name in CURVES:
        return CURVES[name](x)
    gate, up = x.chunk(2, -1)
    if name == "swiglu-oss":
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return CURVES[GATES[name]](gate) * up


def norm(x, weight, bias, kind, epsilon=1e-6):
    shape = (x.shape[-1],)
    if kind == "layer":
        return functional.layer_norm(x, shape, weight, bias, epsilon)
    y = functional.rms_norm(x, shape, weight, epsilon)
    return y if bias is None else y + bias


def exact_linear(x, weight, bias):
    return functional.linear(x, weight, bias)


def exact_norm_linear(kind):
    """octofold.norm_linear() by torch's operations."""

    def function(x, residual, norm_weight, norm_bias, weight, bias):
        total = x if residual is None else x + residual
        y = functional.linear(norm(total, norm_weight, norm_bias, kind), weight, bias)
        return y if residual is None else (y, total)

    return function


IN, HIDDEN, OUT = 192, 160, 136


def mlp_operands(dtype=FP32, tokens=(2, 65), name="swiglu", biases=True, hidden=HIDDEN):
    features = 2 * hidden if name in GATES else hidden
    return {
        "x": random(*tokens, IN, dtype=dtype),
        "gate_up_weight": (random(features, IN) / IN**0.5).to(dtype),
        "down_weight": (random(OUT, hidden) / hidden**0.5).to(dtype),
        "gate_up_bias": random(features, dtype=dtype) if biases else None,
        "down_bias": random(OUT, dtype=dtype) if biases else None,
    }


def exact_mlp(name="swiglu", kind=None):
    """octofold.mlp() of mlp_operands(), behind a norm of this kind, by torch's operations."""

    def function(x, gate_up_weight, down_weight, gate_up_bias, down_bias, **before):
        if kind is not None:
            x = x + before["residual"]
            total, x = x, norm(x, before["norm_weight"], before["norm_bias"], kind)
        h = activation(functional.linear(x, gate_up_weight, gate_up_bias), name)
        y = functional.linear(h, down_weight, down_bias)
        return y if kind is None else (y, total)

    return function


def differentiated(function, operands, gradients):
    """function(**operands) on fresh leaves of the tensors, as a list, and their gradients by name.
    `gradients`: by the results."""
    leaves = {
        name: operand.detach().clone().requires_grad_()
        for name, operand in operands.items()
        if isinstance(operand, torch.Tensor)
    }
    results = function(**operands | leaves)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    gradients = [g.to(y.dtype) for g, y in zip(gradients, results, strict=True)]
    torch.autograd.backward(results, gradients)
    return [y.detach() for y in results], {name: leaf.grad for name, leaf in leaves.items()}


def wide(operands):
    return {n: None if t is None else t.double() for n, t in operands.items()}


def bytes_kept(call):
    """The dtypes and shapes of tensors that a call saves for backward, each memory once."""
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.__setitem__(t.data_ptr(), t) or t, lambda t: t
    ):
        call()
    return [(t.dtype, tuple(t.shape)) for t in saved.values()]


def size_of(kept):
    """The bytes of what bytes_kept() tells."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in kept)


def norm_operands(tokens=(2, 65), features=192, dtype=FP32, residual=True):
    return {
        "x": random(*tokens, features, dtype=dtype),
        "residual": random(*tokens, features, dtype=dtype) if residual else None,
        "norm_weight": (torch.rand(features) + 0.5).to(dtype),
        "norm_bias": (0.1 * torch.randn(features)).to(dtype),
    }
