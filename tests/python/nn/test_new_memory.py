"""Models whose parameters get their memory late: meta, to_empty(), load_state_dict(assign=True).
What a checkpoint does not hold is initialised."""

import copy

import octofold
import pytest
from layer_support import NAMES, random

torch = pytest.importorskip("torch")

nn = octofold.nn
SIZE = 256

MODULES = {recipe: lambda recipe=recipe: nn.Linear(SIZE, SIZE, recipe=recipe) for recipe in NAMES}
MODULES |= {
    "norm and linear": lambda: nn.NormLinear(SIZE, SIZE),
    "mlp": lambda: nn.MLP(SIZE, SIZE, norm="layer"),
    "experts": lambda: nn.MixtureOfExperts(SIZE, SIZE, 4, 2, scoring="sigmoid", choice_bias=True),
    "inference": lambda: nn.InferenceLinear.from_linear(torch.nn.Linear(SIZE, SIZE)),
}


def onto_poison(module):
    """to_empty() onto memory that holds what it had before: here huge numbers and NaN."""
    empty_like = torch.empty_like

    def poisoned(*arguments, **options):
        tensor = empty_like(*arguments, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    torch.empty_like = poisoned
    try:
        return module.to_empty(device="cpu")
    finally:
        torch.empty_like = empty_like


def emptied(module, state):
    """From meta to memory, and filled."""
    module = onto_poison(module.to("meta"))
    module.load_state_dict(state)
    return module


def emptied_in_place(module, state):
    """To other memory, though it had some."""
    onto_poison(module).load_state_dict(state)
    return module


def assigned(module, state):
    module = module.to("meta")
    module.load_state_dict(state, assign=True)
    return module


def copied(module, state):
    return copy.deepcopy(assigned(module, state))


WAYS = {f.__name__: f for f in (emptied, emptied_in_place, assigned, copied)}


def passes(module, x):
    """Two steps, of which the second has what a recipe keeps of the first."""
    results = []
    for _ in range(2):
        y = module(x)
        results.append(y)
        if y.requires_grad:
            results += torch.autograd.grad(y.square().sum(), [*module.parameters()])
    return results


@pytest.mark.parametrize("fill", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", MODULES)
def test_computes_as_if_it_had_been_made_there(name, fill):
    original = MODULES[name]()
    state = {key: tensor.clone() for key, tensor in original.state_dict().items()}
    x = random(65, SIZE)
    module = fill(MODULES[name](), state)
    assert not any(t.is_meta for t in (*module.parameters(), *module.buffers()))
    for left, right in zip(passes(module, x), passes(original, x), strict=True):
        assert right.isfinite().all()
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", MODULES)
def test_parameters_are_reset_on_new_memory(name):
    """As FSDP2 makes models: on meta, then in memory, then reset_parameters() of each module."""
    module = onto_poison(MODULES[name]().to("meta"))
    if name == "inference":
        pytest.skip("has no parameters to reset")
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(buffer.isfinite().all() for buffer in module.buffers())
    assert all(y.isfinite().all() for y in passes(module, random(65, SIZE)))
