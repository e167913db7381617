"""Gradients in weight.main_grad, and the errors for what would look for them in weight.grad."""

import copy

import octofold
import pytest
import torch

from tests.python.judge import assert_same
from tests.python.nn.layer_support import (
    KINDS,
    MODULES,
    ask_for_main_grad,
    compiled,
    every,
    inputs_of,
    mlp_of_three,
    random,
    relative_error,
    step,
)

nn = octofold.nn


@every(MODULES)
def test_main_grad(make):
    """Each backward adds to weights' main_grad in FP32; all else has the bits that it had."""
    check_main_grad(make, is_compiled=False)


@pytest.mark.slow
@every(KINDS)
def test_compiled_main_grad(make):
    check_main_grad(make, is_compiled=True)


def check_main_grad(make, is_compiled):
    torch.compiler.reset()
    module = make().bfloat16()
    inputs = inputs_of(module, dtype=torch.bfloat16)
    twin = copy.deepcopy(module)
    ask_for_main_grad(twin)
    if is_compiled:  # else backward makes it
        for part in twin.modules():
            for weight in part.parameters(recurse=False):
                if hasattr(part, "main_grad") and weight.dim() > 1:
                    weight.main_grad = torch.zeros(weight.shape)
    run = compiled(twin) if is_compiled else twin
    expected = step(module, *inputs)
    actual = step(run, *inputs)
    of_weights = {n: p.main_grad for n, p in twin.named_parameters() if hasattr(p, "main_grad")}
    assert of_weights
    wanted = {name: module.get_parameter(name).grad for name in of_weights}
    others = [p.grad for n, p in module.named_parameters() if n not in of_weights]
    assert_same(actual, [*expected[: 1 + len(inputs)], *others])
    for state in twin.buffers():
        state.zero_()
    step(run, *inputs)
    for name, held in of_weights.items():
        assert twin.get_parameter(name).main_grad is held
        assert held.dtype == torch.float32
        assert relative_error(held, 2 * wanted[name]) < 2**-8


def test_main_grad_of_a_frozen_weight():
    layer = nn.Linear(300, 200, main_grad=True)
    layer.weight.requires_grad_(False)
    step(layer, random(65, 300))
    assert not hasattr(layer.weight, "main_grad")


def test_main_grad_that_does_not_fit():
    layer, x = nn.Linear(300, 200, main_grad=True), random(65, 300)
    for bad, got in (
        (random(200, 300).half(), "torch.float16"),
        (random(3, 3), r"\[3, 3\]"),
        (1, "int"),
    ):
        layer.weight.main_grad = bad
        with pytest.raises(
            octofold.InvalidArgumentError, match=f"weight.main_grad': expected float32 .*{got}"
        ):
            layer(x)


def test_main_grad_of_one_layer_of_an_mlp():
    """The layer's weights are cast and multiplied together with another's."""
    module, x = mlp_of_three("blockwise"), random(130, 256)
    _, _, gate, *others = step(module, x)
    module.gate_proj.main_grad = True
    _, _, *rest = step(module, x)
    assert_same(rest, others)
    assert relative_error(module.gate_proj.weight.main_grad, gate) < 1e-5


def modules():
    """One of each kind that takes main_grad, asked for it."""
    for make in KINDS.values():
        module = make()
        ask_for_main_grad(module)
        yield module, lambda module=module: module(inputs_of(module)[0])


READERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters).step(),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True).step(),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True).step(),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1).step(),
    "clip_grad_norm_": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
    "arithmetic": lambda parameters: [p.data.sub_(p.grad) for p in parameters],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_who_reads_grad_is_told(read):
    """torch's optimizers pass over parameters without grad: the model would stay as it was."""
    for module, run in modules():
        run().sum().backward()
        weights = [p for p in module.parameters() if hasattr(p, "main_grad")]
        assert weights
        with pytest.raises(octofold.UnsupportedError, match=r"the gradient is in weight.main_grad"):
            read(weights)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_is_no_reader(set_to_none):
    for module, run in modules():
        optimizer = torch.optim.AdamW(module.parameters())
        for _ in range(2):
            run().sum().backward()
            optimizer.zero_grad(set_to_none)
            assert all((p.grad is None) == set_to_none for p in module.parameters())
            assert "main_grad" in repr([p.grad for p in module.parameters()]) or set_to_none
