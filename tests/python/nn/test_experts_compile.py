"""Expert layers under torch.compile, whole graphs forward and backward."""

import copy

import octofold
import pytest
from expert_support import EXPERTS, HIDDEN, INNER, SLOTS, choices, operands
from fused_support import differentiated, step
from layer_support import random, relative_error

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

nn = octofold.nn
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_function(recipe, bias):
    given, ids, dy = operands(dtype=BF16, bias=bias), choices(), random(70, HIDDEN, dtype=BF16)

    def function(x, topk_weights, w13, w2, b13=None, b2=None):
        return octofold.experts(x, ids, topk_weights, w13, w2, "swiglu", recipe, b13, b2)

    expected_y, expected = differentiated(function, given, [dy])
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        y, grads = differentiated(compiled, given, [dy])
        assert torch.equal(y[0], expected_y[0])
        for name, gradient in expected.items():
            assert torch.equal(grads[name], gradient), name
        with torch.no_grad():
            assert torch.equal(compiled(**given), function(**given))


def mixture():
    module = nn.MixtureOfExperts(
        HIDDEN, INNER, EXPERTS, SLOTS, 64, scoring="sigmoid", choice_bias=True, dtype=BF16
    )
    return module, random(2, 35, HIDDEN, dtype=BF16)


def test_module():
    """Twice, with a step of the optimizer between: the weights are cast in each call."""
    eager, _ = mixture()
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x = random(2, 35, HIDDEN, dtype=BF16)
        for left, right in zip(step(compiled, x), step(eager, x), strict=True):
            assert torch.equal(left, right)
        for model in (eager, compiled):
            torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_main_grad():
    eager = nn.Experts(HIDDEN, INNER, EXPERTS, main_grad=True)
    other = copy.deepcopy(eager)
    ids, weights, x = choices(), torch.rand(70, SLOTS), random(70, HIDDEN)
    for module in (eager, torch.compile(other, fullgraph=True, backend="aot_eager")):
        for parameter in module.parameters():
            parameter.main_grad = torch.ones_like(parameter)
        for _ in range(2):
            module(x, ids, weights).square().sum().backward()
    for left, right in zip(other.parameters(), eager.parameters(), strict=True):
        assert left.grad is None
        assert torch.equal(left.main_grad, right.main_grad)


def test_fp8_weights():
    layer = nn.Experts(HIDDEN, 128, EXPERTS, dtype=BF16)
    frozen = [
        octofold.quantize(weight.detach(), "128x128 torchao")
        for weight in (layer.gate_up_proj, layer.down_proj)
    ]
    module = nn.Experts.from_weights(*frozen)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    ids, weights, x = choices(), torch.rand(70, SLOTS), random(70, HIDDEN, dtype=BF16)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    results = [
        run(leaf, ids, weights) for run, leaf in zip((module, compiled), leaves, strict=True)
    ]
    for y in results:
        y.sum().backward()
    assert torch.equal(*results)
    assert torch.equal(leaves[0].grad, leaves[1].grad)


def test_sizes_do_not_recompile():
    module, _ = mixture()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    step(compiled, random(260, HIDDEN, dtype=BF16))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (261, 1000):
            x = random(tokens, HIDDEN, dtype=BF16)
            for left, right in zip(step(compiled, x), step(module, x), strict=True):
                assert torch.equal(left, right)


@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_inductor():
    module, x = mixture()
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
    for left, right in zip(step(compiled, x), step(module, x), strict=True):
        assert relative_error(left, right) < 0.02
