"""Modules under torch.compile: each that trains, two in one graph, and the choice between FP8 and a
plain product."""

import copy
from functools import partial

import octofold
import pytest
import torch

from tests.python.judge import assert_compiled_same, assert_same
from tests.python.nn.layer_support import (
    KINDS,
    MODULES,
    WIDTH,
    Routed,
    compiled,
    every,
    inputs_of,
    random,
    relative_error,
    step,
)

pytestmark = pytest.mark.slow

nn = octofold.nn


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


OSS = {"activation": "swiglu-oss", "bias": True}
WITH_NUMBERS = {
    "mlp": lambda: nn.MLP(WIDTH, 128, recipe="rowwise_with_gw_hp", **OSS),
    "experts": lambda: Routed(nn.Experts(WIDTH, 128, 4, **OSS)),
}


@every(WITH_NUMBERS)
def test_two_layers_of_any_sizes_in_one_graph(make):
    model, x = torch.nn.Sequential(make(), make()), random(65, WIDTH)
    twin = compiled(copy.deepcopy(model), dynamic=True)
    assert_compiled_same(step(twin, x), step(model, x))


def test_decision_is_compiled(monkeypatch):
    """On a GPU of which FP8 is known to lose with few tokens (the table is asked for the CPU)."""
    from octofold.nn.layers import linear
    from octofold.nn.recipes import choice

    monkeypatch.setattr(choice, "_gpu_name_once", lambda index: "this one")
    table = {"this one": {"blockwise": choice.Threshold(size=60, multiplications=0)}}
    monkeypatch.setattr(choice, "MEASURED", table)
    gpu = torch.device("cuda", 0)

    def on_gpu(tokens, in_features, out_features, recipe, device):
        return choice.fp8_wins(tokens, in_features, out_features, recipe, gpu)

    monkeypatch.setattr(linear, "fp8_wins", on_gpu)
    layer = nn.Linear(300, 200)
    run = compiled(layer)
    for tokens, plain in ((20, True), (200, False)):
        x = random(tokens, 300)
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        assert torch.equal(run(x), layer(x))
        assert torch.equal(run(x), expected) == plain


@every(
    MODULES
    | {
        "mlp, keep_fp8": partial(nn.MLP, WIDTH, 128, keep_fp8=True),
        "norm and linear, rowwise_with_gw_hp": partial(
            nn.NormLinear, WIDTH, 128, recipe="rowwise_with_gw_hp"
        ),
    }
)
def test_compiles_whole(make):
    """Twice, with a step of the optimizer between: the weights are cast in each call, and what a
    recipe keeps goes on."""
    eager = make()
    twin = copy.deepcopy(eager)
    run = compiled(twin)
    for _ in range(2):
        inputs = inputs_of(eager)
        assert_compiled_same(step(run, *inputs), step(eager, *inputs))
        for model in (eager, twin):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(twin.buffers(), eager.buffers())


@every(KINDS)
def test_compiled_autocast(make):
    module = make()
    inputs = inputs_of(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(step(compiled(module), *inputs), step(module, *inputs))


@every(KINDS)
def test_sizes_do_not_recompile(make):
    """Sizes of more than one unit of 128 tokens share a graph: one unit is torch's own case."""
    module = make()
    run = compiled(module, dynamic=True)
    step(run, *inputs_of(module, tokens=260))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (261, 1000):
            inputs = inputs_of(module, tokens)
            assert_same(step(run, *inputs), step(module, *inputs))


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize(("name", "limit"), [("blockwise", 1e-4), ("mixture of experts", 0.02)])
def test_inductor(name, limit):
    """It sums in its own order."""
    module = MODULES[name]()
    inputs = inputs_of(module)
    run = torch.compile(copy.deepcopy(module), fullgraph=True)
    for left, right in zip(step(run, *inputs), step(module, *inputs), strict=True):
        assert relative_error(left, right) < limit
