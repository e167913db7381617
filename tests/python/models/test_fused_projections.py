"""fuse_qkv_projections() of Diffusers, which makes one layer of the weights of three: before what
changes a model and after it."""

import octofold
import pytest
import torch

from tests.python.nn.layer_support import relative_error

pytest.importorskip("diffusers")
from tests.python.models.library_models import outcome, unet

CHANGES = {
    "casting": octofold.models.enable_layerwise_casting,
    "training": octofold.nn.convert,
    "weight only": octofold.nn.convert_weight_only,
}


@pytest.fixture
def model():
    return unet()


def fused_layers(model):
    return [layer for name, layer in model.named_modules() if name.endswith(("to_qkv", "to_kv"))]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fused_before(model, change):
    model, inputs = model
    expected = outcome(model, inputs)
    model.fuse_qkv_projections()
    plain = [(type(layer), type(layer.weight)) for layer in fused_layers(model)]
    change(model)
    assert [(type(layer), type(layer.weight)) for layer in fused_layers(model)] != plain
    assert relative_error(outcome(model, inputs), expected) < 0.2


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fused_afterwards(model, change):
    """The new layers have the weights' numbers, and are torch's."""
    model, inputs = model
    expected = outcome(model, inputs)
    change(model)
    model.fuse_qkv_projections()
    assert {type(layer) for layer in fused_layers(model)} == {torch.nn.Linear}
    assert {type(layer.weight) for layer in fused_layers(model)} == {torch.nn.Parameter}
    assert relative_error(outcome(model, inputs), expected) < 0.2
