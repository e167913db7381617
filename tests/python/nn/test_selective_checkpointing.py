"""Selective activation checkpointing, which saves the results of chosen operations and runs the
others again: gradients have the bits of a pass without it, whatever is saved."""

from functools import partial

import octofold
import pytest

from tests.python.nn.layer_support import MODULES, every, random

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint")

pytestmark = pytest.mark.slow

nn = octofold.nn


def operations():
    octofold.ops.convert_dtype(
        torch.zeros(1), "e4m3"
    )  # the first call with a tensor registers them
    from octofold._core.ops import TABLE

    return [getattr(torch.ops.octofold, name).default for name in TABLE]


def products():
    names = "gemm", "grouped_gemm", "gated_gemm"
    return [op for op in operations() if op.__name__.split(".")[0] in names]


POLICIES = {"nothing": list, "products": products, "all": operations}


def gradients(function, x, parameters):
    y = function(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, *parameters))]


@pytest.mark.parametrize("policy", POLICIES)
@every(MODULES)
def test_gradients_are_those_of_a_plain_pass(make, policy):
    module = make()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    x = random(65, 256).requires_grad_()

    def run(x):
        return torch.tanh(module(x))

    def checkpointed(x):
        contexts = partial(checkpoint.create_selective_checkpoint_contexts, POLICIES[policy]())
        return checkpoint.checkpoint(run, x, use_reentrant=False, context_fn=contexts)

    expected = gradients(run, x, module.parameters())
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])  # a recipe's state, as it was
    actual = gradients(checkpointed, x, module.parameters())
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)
