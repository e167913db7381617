"""Uses of every module that trains: copied, in files, checkpointed, with frozen parameters, with
main_grad, with casts that are kept, under autocast, compiled, restored."""

import copy
import io
import pickle

import octofold
import pytest

from tests.python.judge import assert_compiled_same, assert_same
from tests.python.nn.layer_support import (
    KINDS,
    MODULES,
    ask_for_main_grad,
    every,
    has_norm,
    inputs_of,
    random,
    relative_error,
    step,
)

torch = pytest.importorskip("torch")

nn = octofold.nn


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def case(make, **options):
    module = make()
    return module, inputs_of(module, **options)


def compiled(module, **options):
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


class Checkpointed(torch.nn.Module):
    def __init__(self, module, use_reentrant):
        super().__init__()
        self.module, self.use_reentrant = module, use_reentrant

    def forward(self, *inputs):
        run = torch.utils.checkpoint.checkpoint
        return run(self.module, *inputs, use_reentrant=self.use_reentrant)


@every(MODULES)
def test_copies_and_files(make):
    module, inputs = case(make)
    step(module, *inputs)  # what a recipe keeps goes along
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    expected = step(copy.deepcopy(module), *inputs)
    for twin in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ):
        assert str(twin) == str(module)
        assert_same(step(twin, *inputs), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
    assert_same(step(module, *inputs), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@every({name: make for name, make in MODULES.items() if name != "delayed"})  # a history goes on
def test_activation_checkpointing(make, use_reentrant):
    """A forward that is done again has the scales and factors of the first time."""
    module, inputs = case(make)
    wrapped = Checkpointed(copy.deepcopy(module), use_reentrant)
    for _ in range(3):
        assert_same(step(wrapped, *inputs), step(module, *inputs))
        assert_same(wrapped.buffers(), module.buffers())


@every(MODULES)
def test_frozen_parameters(make):
    module, inputs = case(make)
    names = [name for name, _ in module.named_parameters()]
    results = step(copy.deepcopy(module), *inputs)
    expected = dict(zip(names, results[-len(names) :], strict=True))
    for frozen in names:
        twin = copy.deepcopy(module)
        twin.get_parameter(frozen).requires_grad_(False)
        step(twin, *inputs)
        actual = {name: parameter.grad for name, parameter in twin.named_parameters()}
        assert_same(actual, expected | {frozen: None})


@every(MODULES)
def test_main_grad(make):
    """Each backward adds to weights' main_grad in FP32; all else has the bits that it had."""
    check_main_grad(make, is_compiled=False)


@pytest.mark.slow
@every(KINDS)
def test_compiled_main_grad(make):
    check_main_grad(make, is_compiled=True)


def check_main_grad(make, is_compiled):
    module, inputs = case(make, dtype=torch.bfloat16)
    module.bfloat16()
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


@every(MODULES)
def test_weights_are_cast_in_each_forward_or_once_where_casts_are_kept(make, casts):
    module, inputs = case(make)

    def of_weights():
        return [shape for shape in casts.copy() if shape[0] not in (65, 130)]

    for _ in range(2):
        step(module, *inputs)
    in_each = of_weights()[: len(of_weights()) // 2]
    assert in_each
    assert of_weights() == 2 * in_each
    casts.clear()
    with nn.keep_casts(module):
        for _ in range(2):
            step(module, *inputs)
        assert of_weights() == in_each
        step(Checkpointed(module, False), *inputs)
        assert of_weights() == in_each
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
        with pytest.raises(octofold.InvalidArgumentError, match="weights that stay as they are"):
            step(module, *inputs)


@every(MODULES)
def test_autocast(make):
    module, (x, *_) = case(make)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


@pytest.mark.slow
@every(MODULES)
def test_compiles_whole(make):
    """Twice, with a step of the optimizer between: the weights are cast in each call, and what a
    recipe keeps goes on."""
    eager, _ = case(make)
    twin = copy.deepcopy(eager)
    run = compiled(twin)
    for _ in range(2):
        inputs = inputs_of(eager)
        assert_compiled_same(step(run, *inputs), step(eager, *inputs))
        for model in (eager, twin):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(twin.buffers(), eager.buffers())


@pytest.mark.slow
@every(KINDS)
def test_compiled_autocast(make):
    module, inputs = case(make)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(step(compiled(module), *inputs), step(module, *inputs))


@pytest.mark.slow
@every(KINDS)
def test_sizes_do_not_recompile(make):
    """Sizes of more than one unit of 128 tokens share a graph: one unit is torch's own case."""
    module, inputs = case(make, tokens=260)
    run = compiled(module, dynamic=True)
    step(run, *inputs)
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (261, 1000):
            inputs = inputs_of(module, tokens)
            assert_same(step(run, *inputs), step(module, *inputs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize(("name", "limit"), [("blockwise", 1e-4), ("mixture of experts", 0.02)])
def test_inductor(name, limit):
    """It sums in its own order."""
    module, inputs = case(MODULES[name])
    run = torch.compile(copy.deepcopy(module), fullgraph=True)
    for left, right in zip(step(run, *inputs), step(module, *inputs), strict=True):
        assert relative_error(left, right) < limit


@every({name: make for name, make in MODULES.items() if "mlp" in name or "norm" in name})
def test_restored_it_is_its_parts_one_after_the_other(make):
    module, inputs = case(make)
    before = step(module, *inputs)
    nn.restore(torch.nn.ModuleList([module]))
    layers = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    assert {type(layer) for layer in layers} == {torch.nn.Linear}
    assert has_norm(module) == (len(inputs) == 2)
    for left, right in zip(step(module, *inputs), before, strict=True):
        assert 1e-6 < relative_error(left, right) < 0.2


def test_convert_takes_layers_and_leaves_fused_modules_alone():
    model = torch.nn.Sequential(nn.MLP(64, 32), nn.NormLinear(64, 32), torch.nn.Linear(32, 8))
    nn.convert(model, "rowwise")
    assert {layer.recipe for layer in (model[0].down_proj, model[1].linear)} == {
        nn.recipes.blockwise
    }
    assert type(model[2]) is nn.Linear
    assert model(random(5, 64)).shape == (5, 8)
    with pytest.raises(octofold.InvalidArgumentError, match="'model': expected a torch"):
        nn.convert(model[:1])
