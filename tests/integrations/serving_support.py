"""Helpers that the tests of both servers share: weights, inputs, and how results are judged."""

import octofold
import torch

from tests.python.judge import assert_close

HIDDEN, INNER, EXPERTS, TOP_K = 256, 128, 4, 2
"""The sizes of mixtures of experts."""


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


def load(layer, **tensors):
    """Loads tensors as from a checkpoint, and does what the server does with what it has loaded."""
    for name, tensor in tensors.items():
        if tensor is not None:
            parameter = getattr(layer, name)
            assert parameter.shape == tensor.shape, name
            parameter.data.copy_(tensor)
    layer.quant_method.process_weights_after_loading(layer)


def load_experts(layer, granularity="128x128"):
    """Loads a checkpoint's experts by the server's own loader. Returns them as float64, gates and
    ups together."""
    scale_name = "weight_scale_inv" if granularity == "128x128" else "weight_scale"
    loaded = []
    for expert in range(EXPERTS):
        gate, up, down = (
            quantized(granularity, *shape)
            for shape in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        )
        for shard, part in (("w1", gate), ("w3", up), ("w2", down)):
            matrix = "w2" if shard == "w2" else "w13"
            scale = part.scale.reshape(()) if granularity == "tensor" else part.scale
            for suffix, tensor in (("weight", part.data), (scale_name, scale)):
                parameter = getattr(layer, f"{matrix}_{suffix}")
                layer.weight_loader(parameter, tensor, f"{matrix}_{suffix}", shard, expert)
        loaded.append((torch.cat([values(gate), values(up)]), values(down)))
    layer.quant_method.process_weights_after_loading(layer)
    return loaded


def routed(tokens):
    """Tokens, the experts that each goes to, and their weights."""
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).to(torch.int32)
    x = random(tokens, HIDDEN, dtype=torch.bfloat16)
    return x, ids, torch.rand(tokens, TOP_K, dtype=torch.float32)


def experts_of(weights, x, ids, factors, activation=torch.nn.functional.silu):
    """In FP64, without casts of activations, of each expert's gates over ups, and second matrix."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), factors.tolist(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            w13, w2 = weights[expert]
            gate, up = (x[token].double() @ w13.T).chunk(2)
            y[token] += share * ((activation(gate) * up) @ w2.T)
    return y
