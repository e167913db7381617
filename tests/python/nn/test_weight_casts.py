"""Casts of weights: the next forward sees a weight that was written to, whoever wrote it and by
whatever way; keep_casts(); cast_after_step(), with which no forward casts and no bit changes."""

import copy
import io

import octofold
import pytest
import torch

from tests.python.judge import assert_same
from tests.python.nn.layer_support import (
    KINDS,
    MODULES,
    WRITES,
    Checkpointed,
    Routed,
    every,
    inputs_of,
    mlp_of_three,
    random,
    step,
)

nn = octofold.nn


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@every(KINDS)
def test_a_write_is_seen(make, write):
    module = make()
    inputs = inputs_of(module)
    step(module, *inputs)  # whatever is to be kept is there
    for weight in module.parameters():
        if weight.dim() > 1:
            expected = 2 * weight.detach()
            write(weight)
            assert torch.equal(weight, expected)
            with torch.no_grad():
                assert_same(module(*inputs), copy.deepcopy(module)(*inputs))


def test_weights_may_be_swapped():
    """torch swaps a module's tensors only if nothing holds a weak reference to them."""
    layer, x = nn.Linear(64, 64), random(5, 64)
    layer(x)
    torch.utils.swap_tensors(layer.weight, torch.nn.Parameter(torch.zeros(64, 64)))
    assert torch.equal(layer(x), layer.bias.expand(5, 64))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_casts_are_kept_until_the_context_is_left(casts):
    layer, x = nn.Linear(96, 64), random(33, 96)
    with nn.keep_casts(layer), nn.keep_casts(layer):
        for _ in range(3):
            layer(x)
    assert casts.count((64, 96)) == 1
    layer(x)
    layer(x)
    assert casts.count((64, 96)) == 3
    with nn.keep_casts(layer):
        with torch.inference_mode():
            layer(x)
        layer(x.requires_grad_()).sum().backward()  # adds the transposed one
        layer(x).sum().backward()
    assert casts.count((64, 96)) == 5


def test_other_models_are_not_kept(casts):
    layer, other, x = nn.Linear(96, 64), nn.Linear(96, 64), random(33, 96)
    with nn.keep_casts(layer):
        other(x)
        other(x)
        assert casts.count((64, 96)) == 2
        layer.weight = torch.nn.Parameter(torch.zeros(64, 96))
        assert torch.equal(layer(x), layer.bias.expand(33, 64))
        torch.func.functional_call(layer, {"weight": torch.ones(64, 96)}, x)
    assert casts.count((64, 96)) == 4


def to_the_old_address(weight):
    """New memory, until it is where the weight was before, if that was given back."""
    address, old = weight.data_ptr(), []
    weight.data = 2 * weight.data
    while weight.data_ptr() != address and len(old) < 100:
        old.append(weight.data)
        weight.data = weight.data.clone()


MOVES = {
    "the old address": to_the_old_address,
    "transposed": lambda weight: setattr(weight, "data", weight.data.t()),
    "of the other sign": lambda weight: setattr(weight, "data", torch._neg_view(weight.data)),
}


@pytest.mark.parametrize("write", [WRITES["in place"], WRITES["new data"], *MOVES.values()])
def test_what_changes_while_casts_are_kept_is_an_error(write):
    layer, x = nn.Linear(96, 96), random(33, 96)
    with nn.keep_casts(layer):
        layer(x)
        write(layer.weight)
        with pytest.raises(octofold.InvalidArgumentError, match="weights that stay as they are"):
            layer(x)
    layer(x)


def test_a_fault_leaves_nothing_kept(casts):
    layer, x = nn.Linear(96, 64), random(33, 96)
    with pytest.raises(octofold.InvalidArgumentError), nn.keep_casts(layer):
        layer(x[:, :-1])
    casts.clear()
    layer(x)
    layer(x)
    assert casts.count((64, 96)) == 2
    is_none = pytest.raises(octofold.InvalidArgumentError, match=r"'model': .* a torch\.nn\.Module")
    with is_none, nn.keep_casts(layer.weight):
        pass


SHAPES = ((96, 64), (64, 96), (128, 96))


def chain(**options):
    layers = nn.Linear(96, 64, **options), torch.nn.ReLU(), nn.Linear(64, 96, **options)
    return torch.nn.Sequential(*layers)


def holding(module, **options):
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2, **options)
    return optimizer, nn.cast_after_step(optimizer, module)


def weight_casts_of(module, casts):
    """How often a weight was cast so far, in the forwards and backwards of layers."""
    shapes = {tuple(p.shape) for p in module.parameters() if p.dim() > 1}
    shapes |= {(2 * rows, cols) for rows, cols in (s for s in shapes if len(s) == 2)}
    return sum(casts.count(shape) for shape in shapes)


@every(MODULES)
def test_steps_have_the_bits_of_casts_in_each_forward(make, casts):
    """Steps of several micro-batches each, with evaluation between them."""
    anew, module = make(), None
    module = copy.deepcopy(anew)
    others, (optimizer, handle) = torch.optim.AdamW(anew.parameters(), 1e-2), holding(module)
    casts.clear()
    for _ in range(3):
        inputs = inputs_of(module)
        expected = [step(anew, *inputs) for _ in range(2)]
        with torch.no_grad():
            expected.append([anew(*inputs)])
        before = weight_casts_of(anew, casts)
        actual = [step(module, *inputs) for _ in range(2)]
        with torch.no_grad():
            actual.append([module(*inputs)])
        assert weight_casts_of(module, casts) == before
        for left, right in zip(actual, expected, strict=True):
            assert_same([t for t in left if t is not None], [t for t in right if t is not None])
        others.step()
        optimizer.step()
    assert before > 0
    handle.remove()
    step(module, *inputs)
    assert weight_casts_of(module, casts) > before


def test_of_the_second_of_two_layers_no_more_than_one_launch_is_made(monkeypatch):
    """All weights of a step go to cast_many() at once."""
    calls = []
    module = torch.nn.Sequential(chain(), mlp_of_three("blockwise"))
    optimizer, handle = holding(module)
    monkeypatch.setattr(
        octofold.nn.casting.step_casts, "cast_many", lambda jobs: calls.append(len(jobs))
    )
    step(module[0], random(8, 96))
    optimizer.step()
    assert calls == [2 + 3]  # gate and up where they lie, each into its part
    handle.casts()
    assert calls == [5, 5]


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise", "tensorwise"])
def test_gate_and_up_are_one_weight(recipe):
    """Gate and up may share scales, and the rows of each may end within a square."""
    module, x = mlp_of_three(recipe, hidden=72), random(40, 256)
    optimizer, _ = holding(module)
    for _ in range(2):
        assert_same(*(step(m, x) for m in (module, copy.deepcopy(module))))
        optimizer.step()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_of_others(write):
    """Writes that torch counts are seen; casts() and the next step renew casts after any write."""
    layer, x = nn.Linear(96, 64), random(8, 96)
    optimizer, handle = holding(layer)
    version, address = layer.weight._version, layer.weight.data_ptr()
    write(layer.weight)
    seen = (layer.weight._version, layer.weight.data_ptr()) != (version, address)
    expected = copy.deepcopy(layer)(x)
    assert torch.equal(layer(x), expected) == seen
    handle.casts()
    assert torch.equal(layer(x), expected)
    write(layer.weight)
    step(layer, x)
    optimizer.step()
    assert torch.equal(layer(x), copy.deepcopy(layer)(x))


def test_a_weight_that_moves_is_cast_where_and_as_it_is():
    mlp = mlp_of_three("blockwise", 96)
    _, handle = holding(mlp)
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    gate.data, up.data = up.data, gate.data
    handle.casts()
    x = random(8, 96)
    assert torch.equal(mlp(x), copy.deepcopy(mlp)(x))


@pytest.mark.parametrize("fused", [False, True])
def test_until_the_next_step_a_weight_that_was_written_is_cast_in_each_forward(fused, casts):
    layer, x = nn.Linear(96, 64), random(8, 96)
    optimizer, _ = holding(layer, fused=fused)
    casts.clear()
    layer(x)
    assert casts.count((64, 96)) == 0
    with torch.no_grad():
        layer.weight.mul_(2)
    layer(x)
    layer(x).sum().backward()
    assert casts.count((64, 96)) == 2
    optimizer.step()
    y = layer(x)
    assert casts.count((64, 96)) == 2
    assert torch.equal(y, copy.deepcopy(layer)(x))


def test_a_state_that_is_loaded_is_cast(casts):
    module, x = chain(), random(8, 96)
    holding(module)
    other = chain()
    module.load_state_dict(other.state_dict())
    casts.clear()
    assert torch.equal(module(x), other(x))
    assert casts.count((64, 96)) == 1  # other's


def test_frozen_weights_and_several_optimizers(casts):
    module, x = torch.nn.Sequential(chain(), nn.Linear(96, 128)), random(8, 96)
    module[0][0].weight.requires_grad_(False)
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in (module[0][2], module[1])]
    nn.cast_after_step(optimizers, module)
    for optimizer in optimizers:
        expected = step(copy.deepcopy(module), x)
        casts.clear()
        assert_same(step(module, x), expected)
        assert not any(casts.count(shape) for shape in SHAPES)
        optimizer.step()
    assert torch.equal(module(x), copy.deepcopy(module)(x))


def test_what_backward_reads_does_not_change_unnoticed():
    layer, x = nn.Linear(96, 64), random(8, 96).requires_grad_()
    optimizer, _ = holding(layer)
    layer(x).sum().backward()
    y = layer(x)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_activation_checkpointing():
    module, x = chain(), random(8, 96)
    holding(module)
    expected = step(module, x)
    assert_same(step(Checkpointed(module, use_reentrant=False), x), expected)


def test_within_keep_casts(casts):
    layer, x = nn.Linear(96, 64), random(8, 96)
    holding(layer)
    casts.clear()
    with nn.keep_casts(layer):
        layer(x)
    assert casts.count((64, 96)) == 0


def test_copies_and_files_hold_no_casts():
    module, x = chain(), random(8, 96)
    optimizer, _ = holding(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(module), loaded):
        assert torch.equal(other(x), module(x))
        other.load_state_dict(chain().state_dict())
        step(other, x)
        torch.optim.SGD(other.parameters(), 1.0).step()
        assert torch.equal(other(x), copy.deepcopy(other)(x))
        assert not torch.equal(other(x), module(x))
    assert set(module.state_dict()) == set(chain().state_dict())
    assert "cast" not in str(optimizer.state_dict())


def test_tied_weights():
    first, second = nn.Linear(96, 96), nn.Linear(96, 96)
    second.weight = first.weight
    module, x = torch.nn.Sequential(first, second), random(8, 96)
    optimizer, handle = holding(module)
    for _ in range(2):
        step(module, x)
        optimizer.step()
        assert torch.equal(module(x), copy.deepcopy(module)(x))
    handle.remove()
    handle.remove()
    assert not any("cast" in name for p in module.parameters() for name in vars(p))
    holding(module)


def test_compiled_forwards_read_the_casts():
    module, x = torch.nn.Sequential(chain(), mlp_of_three("blockwise", 96)), random(8, 96)
    optimizer, _ = holding(module)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(module, backend=backend, fullgraph=True)
    for _ in range(2):
        y = compiled(x)
        assert torch.equal(y, copy.deepcopy(module)(x))
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(graphs) == 1
    names = [node.name for node in graphs[0].graph.nodes if node.op == "placeholder"]
    assert sum("step_casts" in name for name in names) >= 4 * 4 - 2


def test_experts_without_tokens_are_cast_too():
    """The next tokens may be for them."""
    module = Routed(nn.Experts(256, 128, 9))
    holding(module)
    x = random(3, 256)
    y, changed = module(x), copy.deepcopy(module)
    assert torch.equal(y, changed(x))
    for part in (module, changed):
        part.forward = lambda x, part=part: part.experts(
            x, torch.full((3, 2), 8, dtype=torch.int32), torch.ones(3, 2)
        )
    assert torch.equal(module(x), changed(x))
