"""Errors of layerwise casting, which leave the model as it was."""

import copy

import octofold
import pytest
import torch
from octofold import models
from octofold.nn import Fp8Weight


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Conv2d(3, 4, 3))


def nan_at_the_end():
    made = model()
    made[1].weight.data.flatten()[-1] = float("nan")
    return made


def on_two_devices():
    made = model()
    made[1].bias = torch.nn.Parameter(torch.empty(4, device="meta"))
    return made


ENABLE, UNDO = models.enable_layerwise_casting, models.disable_layerwise_casting


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: 3, {}, "'module': expected a torch.nn.Module, got int"),
        (model, {"storage_dtype": "int8"}, "'storage_dtype': expected one of e4m3, e5m2"),
        (model, {"storage_dtype": torch.bfloat16}, "'storage_dtype': expected one of e4m3"),
        (model, {"compute_dtype": "e4m3"}, "'compute_dtype': expected one of float32"),
        (model, {"compute": "yes"}, "'compute': expected one of auto, native, .*, got 'yes'"),
        (model, {"non_blocking": 1}, "'non_blocking': expected True or False, got 1"),
        (model, {"keep_originals": None}, "'keep_originals': expected True or False"),
        (model, {"skip_modules_pattern": 3}, "'skip_modules_pattern': expected a tuple, got int"),
        (model, {"skip_modules_pattern": ("a", 3)}, "'skip_modules_pattern': expected \"auto\""),
        (model, {"skip_modules_pattern": "("}, r"a regular expression or a tuple.*got '\(' \("),
        (model, {"skip_modules_pattern": "norm"}, "found in a name of a module, got 'norm', found"),
        (model, {"skip_modules_pattern": "."}, "'skip_modules_pattern': expected to leave a layer"),
        (model, {"skip_modules_classes": 3}, "'skip_modules_classes': expected a tuple, got int"),
        (model, {"skip_modules_classes": (3,)}, "'skip_modules_classes': expected classes of mod"),
        (
            model,
            {"skip_modules_classes": (torch.nn.Module,), "skip_modules_pattern": ()},
            "every layer of Sequential skipped",
        ),
        (torch.nn.ReLU, {}, "'module': expected linear, convolution or embedding layers.*ReLU"),
        (lambda: model().to("meta"), {}, "'module': expected weights in memory.*'0' on meta"),
        (on_two_devices, {}, "each layer on one device, got '1' with its weight on cpu"),
        (nan_at_the_end, {}, "'module': expected finite weights.*NaN or infinity in '1'"),
        (lambda: torch.nn.Linear(8, 8).double(), {}, r"its weight is Parameter of torch\.float64"),
        (lambda: torch.nn.LazyLinear(8), {}, "its weight is UninitializedParameter"),
        (lambda: octofold.nn.Linear(8, 8), {}, "it is Linear of Octofold already"),
        (lambda: torch.nn.Embedding(8, 8, max_norm=1), {}, r"\(max_norm\)"),
        (
            lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8)),
            {},
            "its weight is no parameter of its own",
        ),
    ],
)
def test_refuses(make, options, message):
    module = make()
    before = copy.deepcopy(module)
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        ENABLE(module, **options)
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.nn.LazyLinear):
        return
    assert [type(one) for one in module.modules()] == [type(one) for one in before.modules()]
    for one, other in zip(module.parameters(), before.parameters(), strict=True):
        if one.device.type != "meta":
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_the_reason_is_in_the_message():
    """Also where other modules are skipped as asked for: of a model whose layers have another
    library's casting."""
    made = torch.nn.ModuleDict({"proj": torch.nn.Linear(8, 8), "norm": torch.nn.LayerNorm(8)})
    made["proj"].forward = made["proj"].forward
    message = r"its forward was replaced \(1\); skipped as asked for \(1\)"
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        ENABLE(made)


def test_twice_and_undoing_nothing():
    with pytest.raises(octofold.InvalidArgumentError, match="a model with layerwise casting, got"):
        UNDO(model())
    with pytest.raises(octofold.InvalidArgumentError, match="'module': expected a torch"):
        UNDO(3)
    made = model()
    ENABLE(made[1])
    with pytest.raises(octofold.InvalidArgumentError, match="casting enabled for '1'"):
        ENABLE(made)
    assert type(made[0]) is torch.nn.Linear
    UNDO(made)
    ENABLE(made)
    made.to("meta")
    with pytest.raises(octofold.InvalidArgumentError, match="weights in memory, got '0' on meta"):
        UNDO(made)


def test_what_fails_midway_is_undone(monkeypatch):
    made, cast = model(), Fp8Weight.cast
    before = copy.deepcopy(made.state_dict())

    def failing(weight, *arguments, **options):
        if weight.dim() > 2:
            raise MemoryError
        return cast(weight, *arguments, **options)

    monkeypatch.setattr(Fp8Weight, "cast", failing)
    with pytest.raises(MemoryError):
        ENABLE(made, keep_originals=True)
    assert [type(one) for one in made] == [torch.nn.Linear, torch.nn.Conv2d]
    assert all(torch.equal(made.state_dict()[key], value) for key, value in before.items())
