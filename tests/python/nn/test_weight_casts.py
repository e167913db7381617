"""The next forward sees a weight that was written to, whoever wrote it and by whatever way; and
what keep_casts() keeps."""

import copy

import octofold
import pytest

from tests.python.judge import assert_same
from tests.python.nn.layer_support import KINDS, NAMES, every, inputs_of, random, step
from tests.python.nn.weight_writes import WRITES

torch = pytest.importorskip("torch")

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


@pytest.mark.parametrize("recipe", NAMES)
def test_a_zeroed_weight_gives_zeros(recipe):
    layer, x = nn.Linear(64, 64, recipe=recipe), random(5, 64)
    layer(x)
    layer.weight.data.zero_()
    assert torch.equal(layer(x), layer.bias.expand(5, 64))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_step_of_torchs_optimizers_is_seen(kind, options):
    layer, x = nn.Linear(32, 16, bias=False), random(8, 32)
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.5, **options)
    for _ in range(2):
        before = layer(x)
        before.sum().backward()
        optimizer.step()
        assert not torch.equal(layer(x), before)
        assert torch.equal(layer(x), octofold.linear(x, layer.weight))
        optimizer.zero_grad()


def test_importing_leaves_other_models_alone():
    """An optimizer's step writes to parameters that have gradients, and counts no other as
    written."""
    a, b = (torch.nn.Parameter(random(3)) for _ in range(2))
    loss_of_b = (b * b.sin()).sum()
    (a * a).sum().backward()
    torch.optim.SGD([a, b], 0.1).step()
    loss_of_b.backward()


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


def test_loras_of_peft_are_merged():
    """PEFT adds to base_layer.weight.data."""
    peft = pytest.importorskip("peft")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)

        def forward(self, x):
            return self.down(torch.relu(self.up(x)))

    x = random(7, 64)
    config = peft.LoraConfig(target_modules=["up", "down"], init_lora_weights=False)
    model = peft.get_peft_model(Model(), config)
    nn.convert(model, module_filter_fn=lambda module, name: "base_layer" in name)
    model.eval()
    with torch.no_grad():
        apart = model(x)
        for merge in (model.merge_adapter, model.unmerge_adapter, model.merge_adapter):
            merge()
            assert torch.equal(model(x), copy.deepcopy(model)(x))
        error = (model(x) - apart).norm() / apart.norm()
        assert error < 0.1  # of casts; 0.5 and more without the adapters
        merged = model.merge_and_unload()
        assert torch.equal(merged(x), model(x))


@pytest.mark.parametrize("recipe", NAMES)
def test_kept_casts_change_no_bit(recipe):
    """A model that keeps its casts beside one that casts in each forward, over steps of several
    micro-batches with evaluation between them."""
    models = [torch.nn.Sequential(nn.Linear(96, 64, recipe=recipe), nn.Linear(64, 96))]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-2) for model in models]
    for _ in range(3):
        batches, of_both = [random(33, 96) for _ in range(3)], []
        with nn.keep_casts(models[1]):
            for model in models:
                results = []
                for batch in batches:
                    with torch.no_grad():
                        results.append(model(batch))
                    y = model(batch)
                    y.square().sum().backward()
                    results.append(y)
                of_both.append([*results, *(p.grad for p in model.parameters())])
        if recipe != "delayed":  # whose histories have one entry for each cast
            for left, right in zip(*of_both, strict=True):
                assert torch.equal(left, right)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


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
