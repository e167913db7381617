"""Models whose parameters get their memory late: meta, to_empty(), load_state_dict(assign=True).
What a checkpoint does not hold is initialised."""

import copy

import octofold
import pytest

from tests.python.nn.layer_support import MODULES, WIDTH, every, random

torch = pytest.importorskip("torch")

nn = octofold.nn


def served():
    return nn.InferenceLinear.from_linear(torch.nn.Linear(WIDTH, 128))


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
@every(MODULES | {"inference": served})
def test_computes_as_if_it_had_been_made_there(make, fill):
    original = make()
    state = {key: tensor.clone() for key, tensor in original.state_dict().items()}
    x = random(65, WIDTH)
    module = fill(make(), state)
    assert not any(t.is_meta for t in (*module.parameters(), *module.buffers()))
    for left, right in zip(passes(module, x), passes(original, x), strict=True):
        assert right.isfinite().all()
        assert torch.equal(left, right)


@every(MODULES)
def test_parameters_are_reset_on_new_memory(make):
    """FSDP2 makes models so: on meta, then in memory, then reset_parameters() of each module."""
    module = onto_poison(make().to("meta"))
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(buffer.isfinite().all() for buffer in module.buffers())
    assert all(y.isfinite().all() for y in passes(module, random(65, WIDTH)))
