"""Gradients in weight.main_grad, and the errors for what would look for them in weight.grad."""

import copy

import octofold
import pytest
from layer_support import NAMES, gradients_of, random, relative_error

torch = pytest.importorskip("torch")

nn = octofold.nn
WEIGHT = (200, 300)


def step(layer, x, dy):
    """Result and gradients of one step, those by parameters without main_grad, as a list."""
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(dy)
    return [y.detach(), x.grad, *gradients_of(layer)]


def case(**options):
    return nn.Linear(300, 200, **options), random(2, 65, 300), random(2, 65, 200)


@pytest.mark.parametrize("recipe", NAMES)
def test_main_grad(recipe):
    layer, x, dy = case(recipe=recipe, dtype=torch.bfloat16)
    x, dy = x.bfloat16(), dy.bfloat16()
    twin = copy.deepcopy(layer)
    twin.main_grad = True
    y, dx, dw, db = step(layer, x, dy)
    actual = step(twin, x, dy)
    assert all(torch.equal(a, b) for a, b in zip(actual, [y, dx, db], strict=True))
    assert twin.weight.main_grad.dtype == torch.float32
    assert relative_error(twin.weight.main_grad, dw) < 2**-8
    held, once = twin.weight.main_grad, twin.weight.main_grad.clone()
    for state in twin.buffers():
        state.zero_()
    step(twin, x, dy)
    assert twin.weight.main_grad is held
    assert relative_error(held, 2 * once) < 1e-6


def test_main_grad_of_a_frozen_weight():
    layer, x, dy = case(main_grad=True)
    layer.weight.requires_grad_(False)
    step(layer, x, dy)
    assert not hasattr(layer.weight, "main_grad")


def test_main_grad_that_does_not_fit():
    layer, x, _ = case(main_grad=True)
    for bad, got in (
        (random(*WEIGHT).half(), "torch.float16"),
        (random(3, 3), r"\[3, 3\]"),
        (1, "int"),
    ):
        layer.weight.main_grad = bad
        with pytest.raises(
            octofold.InvalidArgumentError, match=f"weight.main_grad': expected float32 .*{got}"
        ):
            layer(x)


def modules():
    """Each module that takes main_grad, with a function that runs it."""
    linear, x = nn.Linear(256, 128, main_grad=True), random(65, 256)
    yield linear, lambda: linear(x)
    parts = [nn.Linear(*sizes, main_grad=True) for sizes in ((256, 128), (256, 128), (128, 256))]
    mlp = nn.MLP.from_linears(*parts)
    yield mlp, lambda: mlp(x)
    experts = nn.Experts(256, 128, 4, main_grad=True)
    ids, weights = torch.randint(4, (65, 2), dtype=torch.int32), torch.ones(65, 2)
    yield experts, lambda: experts(x, ids, weights)


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
