"""Layers that torch has parametrized: what converts and restores them refuses, or skips them."""

import octofold
import pytest

from tests.python.nn.layer_support import random

torch = pytest.importorskip("torch")

from torch.nn.utils.parametrizations import spectral_norm, weight_norm  # noqa: E402
from torch.nn.utils.parametrize import remove_parametrizations  # noqa: E402

nn = octofold.nn


@pytest.mark.parametrize("parametrize", [weight_norm, spectral_norm])
@pytest.mark.parametrize("recipe", ["blockwise", "delayed"])
def test_to_linear_refuses_and_leaves_the_layer(parametrize, recipe):
    layer = parametrize(nn.Linear(32, 16, recipe=recipe, force_fp8=True)).eval()
    x = random(4, 32)
    before, names = layer(x), set(layer.state_dict())
    with pytest.raises(octofold.InvalidArgumentError, match="one that computes its weight"):
        layer.to_linear()
    assert torch.equal(layer(x), before)
    assert set(layer.state_dict()) == names
    with pytest.raises(octofold.InvalidArgumentError, match="parametrized"):
        nn.restore(torch.nn.Sequential(layer))
    remove_parametrizations(layer, "weight")
    back = layer.to_linear()
    assert type(back) is torch.nn.Linear
    assert back.weight is layer.weight
    assert set(back._buffers) == set()
    assert back(x).shape == (4, 16)


@pytest.mark.parametrize("parametrize", [weight_norm, spectral_norm])
def test_parametrized_layers_of_torch_are_not_converted(parametrize):
    layer = parametrize(torch.nn.Linear(32, 16))
    with pytest.raises(octofold.InvalidArgumentError, match=r"a torch\.nn\.Linear itself"):
        nn.Linear.from_linear(layer)
    model = torch.nn.Sequential(layer, torch.nn.Linear(16, 8))
    nn.convert(model)
    assert model[0] is layer
    assert isinstance(model[1], nn.Linear)
