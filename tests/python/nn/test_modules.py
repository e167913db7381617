"""Uses of every module that trains: copied, in files, checkpointed, with frozen parameters, with
casts that are kept, under modes, restored, on memory that comes late."""

import copy
import io
import pickle
from functools import partial

import octofold
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.python.judge import assert_same
from tests.python.nn.layer_support import (
    MODULES,
    WIDTH,
    Checkpointed,
    every,
    has_norm,
    inputs_of,
    random,
    relative_error,
    step,
)

nn = octofold.nn


def case(make, **options):
    module = make()
    return module, inputs_of(module, **options)


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


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@every(MODULES)
def test_what_modes_see_has_the_bits_of_eager_calls(make):
    module, inputs = case(make)
    expected = step(copy.deepcopy(module), *inputs)
    with Passing():
        assert_same(step(module, *inputs), expected)


def saving(names):
    """Selective checkpointing: results of these operations are saved, the others are run again."""
    octofold.ops.convert_dtype(torch.zeros(1), "e4m3")  # the first call registers them
    from octofold._core.ops import TABLE

    saved = [getattr(torch.ops.octofold, name).default for name in names or TABLE]
    contexts = torch.utils.checkpoint.create_selective_checkpoint_contexts
    return {"use_reentrant": False, "context_fn": partial(contexts, saved)}


CHECKPOINTS = {
    "reentrant": lambda: {"use_reentrant": True},
    "all again": lambda: {"use_reentrant": False},
    "products saved": lambda: saving(("gemm", "grouped_gemm", "gated_gemm")),
    "all saved": lambda: saving(()),
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=[pytest.mark.slow] * ("saved" in name))
        for name, options in CHECKPOINTS.items()
    ],
)
@every(MODULES)
def test_activation_checkpointing(make, options):
    """A forward that is done again has the scales of the first time."""
    module, inputs = case(make)
    wrapped = Checkpointed(copy.deepcopy(module), **options())
    assert_same(step(wrapped, *inputs), step(module, *inputs))
    assert_same(wrapped.buffers(), module.buffers())


@every(MODULES)
def test_weights_are_cast_in_each_forward_or_once_where_casts_are_kept(make, casts):
    module, inputs = case(make)
    twin = copy.deepcopy(module)

    def of_weights():
        return [shape for shape in casts.copy() if shape[0] not in (65, 130)]

    expected = [step(twin, *inputs) for _ in range(2)]
    in_each = of_weights()[: len(of_weights()) // 2]
    assert in_each
    assert of_weights() == 2 * in_each
    casts.clear()
    with nn.keep_casts(module):
        actual = [step(module, *inputs)]
        once = of_weights()
        assert set(once) == set(in_each)  # a layer's own call shows one read of both ways' casts
        actual.append(step(module, *inputs))
        assert_same(actual, expected)
        step(Checkpointed(module, use_reentrant=False), *inputs)
        assert of_weights() == once
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
        with pytest.raises(octofold.InvalidArgumentError, match="weights that stay as they are"):
            step(module, *inputs)


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


def served():
    return nn.inference_linear(torch.nn.Linear(WIDTH, 128))


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
            results += torch.autograd.grad(
                y.square().sum(), [p for p in module.parameters() if p.requires_grad]
            )
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
