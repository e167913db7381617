"""Layers with FP8 weights under torch.compile, and the choice between FP8 and a plain product; what
trains is compiled in test_modules.py and test_functions.py, and here two in one graph."""

import copy

import octofold
import pytest

from tests.python.judge import assert_compiled_same, assert_same
from tests.python.nn.layer_support import WIDTH, Routed, random, step

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

nn = octofold.nn


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def experts():
    module = nn.Experts(WIDTH, 128, 4, dtype=torch.bfloat16)
    weights = module.gate_up_proj.detach(), module.down_proj.detach()
    frozen = (octofold.quantize(weight, "128x128 torchao") for weight in weights)
    return Routed(nn.Experts.from_weights(*frozen))


def weight_only():
    return nn.WeightOnlyLinear.from_linear(torch.nn.Linear(WIDTH, 200).bfloat16())


def inference():
    return nn.InferenceLinear.from_linear(torch.nn.Linear(WIDTH, 200))


@pytest.mark.parametrize("make", [inference, weight_only, experts])
def test_fp8_weights(make):
    layer, x = make(), random(65, WIDTH, dtype=torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_same(compiled(x), layer(x))
    assert_same(step(compiled, x), step(layer, x))


OSS = {"activation": "swiglu-oss", "bias": True}
WITH_NUMBERS = {
    "delayed": lambda: nn.Linear(WIDTH, WIDTH, recipe="delayed"),
    "mlp": lambda: nn.MLP(WIDTH, 128, recipe="rowwise_with_gw_hp", **OSS),
    "experts": lambda: Routed(nn.Experts(WIDTH, 128, 4, **OSS)),
}


@pytest.mark.parametrize("make", WITH_NUMBERS.values(), ids=WITH_NUMBERS)
def test_two_layers_of_any_sizes_in_one_graph(make):
    model, x = torch.nn.Sequential(make(), make()), random(65, WIDTH)
    twin = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager", dynamic=True)
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
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens, plain in ((20, True), (200, False)):
        x = random(tokens, 300)
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        assert torch.equal(compiled(x), layer(x))
        assert torch.equal(compiled(x), expected) == plain
