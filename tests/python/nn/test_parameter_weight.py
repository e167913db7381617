"""Layers whose FP8 weight is a parameter, as libraries that offload layers want it."""

import copy
import io

import pytest

from tests.python.nn.layer_support import relative_error

torch = pytest.importorskip("torch")

from octofold import nn  # noqa: E402
from octofold.nn.layers.stored_weight import StoredWeight  # noqa: E402

KINDS = (nn.InferenceLinear, nn.WeightOnlyLinear)


@pytest.fixture(params=KINDS)
def layers(request):
    """Two of the same weight, the second with a parameter."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 384).bfloat16()
    one, other = (request.param.from_linear(linear) for _ in range(2))
    other.keep_as_parameter()
    other.keep_as_parameter()
    return one, other


def same_outputs(one, other):
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        return torch.equal(one(x), other(x))


def test_is_a_frozen_parameter_and_no_buffer(layers):
    one, other = layers
    assert type(other.weight) is StoredWeight
    assert not other.weight.requires_grad
    assert "weight" in dict(other.named_parameters())
    assert "weight" not in dict(other.named_buffers())
    assert same_outputs(one, other)
    assert set(one.state_dict()) == set(other.state_dict())


def test_moves_but_does_not_convert(layers):
    one, other = layers
    address = other.weight.data_ptr()
    for call in ("half", "float", "double", "bfloat16"):
        getattr(other, call)()
        assert other.weight.dtype == torch.float8_e4m3fn
        assert other.scaled_weight.scale.dtype == torch.float32
        assert other.weight.data_ptr() == address
    other.type(torch.bfloat16)
    assert type(other.weight) is StoredWeight
    assert other.weight.dtype == torch.float8_e4m3fn
    assert same_outputs(one, other)
    other.to("meta")
    assert type(other.weight) is StoredWeight
    assert other.weight.is_meta


@pytest.mark.parametrize("assign", [False, True])
def test_takes_states(layers, assign):
    one, _ = layers
    other = type(one).from_linear(torch.nn.Linear(256, 384).bfloat16())
    other.keep_as_parameter()
    other.load_state_dict(one.state_dict(), assign=assign)
    assert type(other.weight) is StoredWeight
    assert same_outputs(one, other)


def test_copies_and_files(layers):
    one, other = layers
    file = io.BytesIO()
    torch.save(other, file)
    file.seek(0)
    for again in (copy.deepcopy(other), torch.load(file, weights_only=False)):
        assert type(again.weight) is StoredWeight
        assert same_outputs(one, again)


def test_stays_one_with_another_weight(layers):
    one, other = layers
    weight = torch.randn(384, 256)
    one.recast(weight)
    other.recast(weight)
    assert type(other.weight) is StoredWeight
    assert same_outputs(one, other)
    assert relative_error(other.scaled_weight.dequantize("float32"), weight) < 0.05


def test_gradients_go_through():
    linear = torch.nn.Linear(256, 384).bfloat16()
    one, other = (nn.WeightOnlyLinear.from_linear(linear) for _ in range(2))
    other.keep_as_parameter()
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    gradients = []
    for layer in (one, other):
        leaf = x.clone().requires_grad_()
        layer(leaf).float().square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
    assert other.weight.grad is None


@pytest.mark.slow
def test_compiles_whole(layers):
    _, other = layers
    x = torch.randn(5, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = other(x)
        compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), expected)
