"""Layers under torch.compile, whole graphs forward and backward."""

import copy

import octofold
import pytest
from layer_support import NAMES, STATELESS, gradients, gradients_of, random

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

nn = octofold.nn


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def step(layer, x, dy):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(dy.to(y.dtype))
    return [y.detach(), x.grad, *gradients_of(layer)]


def assert_same(actual, expected):
    for left, right in zip(actual, expected, strict=True):
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


def model_of(recipe, **options):
    layers = torch.nn.Linear(300, 200), torch.nn.ReLU(), torch.nn.Linear(200, 130, bias=False)
    return nn.convert(torch.nn.Sequential(*layers), recipe, **options).model


@pytest.mark.parametrize("recipe", NAMES)
def test_model(recipe):
    """Twice, with a step of the optimizer between: the weights are cast in each call. Histories of
    delayed scaling go on in both directions."""
    eager = model_of(recipe)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x, dy = random(2, 65, 300), random(2, 65, 130)
        assert_same(step(compiled, x, dy), step(eager, x, dy))
        for model in (eager, compiled):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(other.buffers(), eager.buffers())
    if recipe == "delayed":
        assert eager[0].amax_history[:, :2].all()
        assert not eager[0].amax_history[:, 2:].any()


@pytest.mark.parametrize("recipe", STATELESS)
def test_function(recipe):
    def function(x, weight, bias):
        return octofold.linear(x, weight, bias, recipe)

    arguments = random(65, 300), random(200, 300), random(200), random(65, 200)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(gradients(compiled, *arguments), gradients(function, *arguments))


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise_with_gw_hp"])
def test_main_grad(recipe):
    eager = model_of(recipe, main_grad=True)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for model in (eager, other):
        for layer in (model[0], model[2]):
            layer.weight.main_grad = torch.ones_like(layer.weight)
    for _ in range(2):
        x, dy = random(65, 300), random(65, 130)
        assert_same(step(compiled, x, dy), step(eager, x, dy))
    assert_same(*([m[0].weight.main_grad, m[2].weight.main_grad] for m in (other, eager)))


def test_sizes_do_not_recompile():
    """As long as there is more than one unit of 128 tokens: one is a case of its own to torch."""
    model = model_of("blockwise")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    step(compiled, random(260, 300), random(260, 130))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (261, 1000):
            x, dy = random(tokens, 300), random(tokens, 130)
            assert_same(step(compiled, x, dy), step(model, x, dy))


def test_autocast():
    model = model_of("blockwise")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, dy = random(65, 300), random(65, 130)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = step(compiled, x, dy), step(model, x, dy)
    assert actual[0].dtype == torch.bfloat16
    assert_same(actual, expected)


@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_inductor():
    model = model_of("blockwise")
    compiled = torch.compile(model, fullgraph=True)
    x, dy = random(65, 300), random(65, 130)
    actual, expected = step(compiled, x, dy), step(model, x, dy)
    for left, right in zip(actual, expected, strict=True):  # it sums biases in its own order
        assert torch.allclose(left, right, rtol=1e-4, atol=1e-4)


def test_inference():
    layer = nn.InferenceLinear.from_linear(torch.nn.Linear(300, 200))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = random(2, 65, 300)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))


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
