"""Sizes, inputs and steps of layers, for the tests of layers on a GPU."""

from tests.gpu.gpu_support import DEVICE, torch
from tests.python.nn.expert_support import choices

TOKENS, HIDDEN, INNER, EXPERTS, SLOTS = 520, 1024, 384, 12, 4
BF16 = {"device": DEVICE, "dtype": torch.bfloat16}


def random(*shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def routing(tokens=TOKENS, empty=2):
    """Ids, of which some go nowhere and some experts have none, and weights."""
    ids = choices((tokens,), EXPERTS, SLOTS, empty=empty).to(DEVICE)
    return ids, torch.rand((tokens, SLOTS), device=DEVICE)


def step(layer, inputs, dy):
    """The result and the gradients: of the inputs, and of the parameters if the layer is a
    module."""
    parameters = []
    if isinstance(layer, torch.nn.Module):
        layer.zero_grad()
        parameters = list(layer.parameters())
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    y = layer(*leaves)
    y.backward(dy)
    gradients = [
        getattr(p.grad, "to_local", lambda p=p: p.grad)().clone()
        for p in parameters
        if p.grad is not None and not hasattr(p, "main_grad")
    ]
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad), *gradients]


def assert_equal(left, right):
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one, other)
