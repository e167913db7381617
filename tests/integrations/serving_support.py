"""Helpers that the tests of both servers share: how a layer's result is judged."""

import octofold
import torch

from tests.python.judge import assert_close


def random(*shape, dtype):
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def quantized(granularity, outputs, inputs):
    """A weight [outputs, inputs] in FP8, of which products stay near 1."""
    return octofold.quantize(random(outputs, inputs, dtype=torch.float32) / 16, granularity)


def values(scaled):
    """float64 of a ScaledTensor."""
    return scaled.dequantize().double()


def cast(x, granularity, scale=None, power_of_two=None):
    """The values that the plugs cast x to, as float64."""
    format = octofold.Format("e4m3", granularity, rule="torchao", power_of_two=power_of_two)
    return values(octofold.quantize(x, format, scale=scale))


def assert_product(y, x, weight, bias=None):
    """y against the FP64 product of what x [..., in] and weight [out, in], float64, stand for."""
    flat = x.reshape(-1, x.shape[-1])
    expected, terms = flat @ weight.T, abs(flat) @ abs(weight).T
    if bias is not None:
        expected, terms = expected + bias.double(), terms + abs(bias.double())
    name = str(y.dtype).removeprefix("torch.")
    assert_close(y.reshape(expected.shape).double(), expected, terms, name)


def routed(tokens, experts, top_k):
    """The experts that each token goes to, and their weights."""
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).to(torch.int32)
    return ids, torch.rand(tokens, top_k, dtype=torch.float32)


def experts_of(weights, x, ids, factors, activation=torch.nn.functional.silu):
    """In FP64, without casts of activations, of each expert's gates over ups, and second matrix."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), factors.tolist(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            w13, w2 = weights[expert]
            gate, up = (x[token].double() @ w13.T).chunk(2)
            y[token] += share * ((activation(gate) * up) @ w2.T)
    return y


def relative_error(y, expected):
    return float((y.double() - expected).norm() / expected.norm())
