"""What tests of layers share."""

import pytest

torch = pytest.importorskip("torch")

STATELESS = ("blockwise", "rowwise", "rowwise_with_gw_hp", "tensorwise")
"""Those of octofold.linear(), which keeps nothing from step to step."""
NAMES = (*STATELESS, "blockwise_two_level", "delayed")


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def relative_error(actual, expected):
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).norm() / expected.norm())


def gradients(function, x, weight, bias, dy):
    """(y, dx, dw, db) of function(x, weight, bias), from fresh leaves."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    y = function(*leaves)
    y.backward(dy.to(y.dtype))
    return y.detach(), *[None if leaf is None else leaf.grad for leaf in leaves]


def gradients_of(module):
    """Copies of the gradients of its parameters, of those that have one in .grad."""
    return [
        p.grad.clone()
        for p in module.parameters()
        if p.grad is not None and not hasattr(p, "main_grad")
    ]


def exact(x, weight, bias, dy):
    """The same in FP64."""
    operands = [None if t is None else t.double() for t in (x, weight, bias)]
    return gradients(torch.nn.functional.linear, *operands, dy.double())
