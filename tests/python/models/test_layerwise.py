"""Layerwise casting of single layers and small models of torch's own."""

import copy
import weakref

import octofold
import pytest
import torch
from octofold import models

from tests.python.nn.layer_support import random, relative_error

functional = torch.nn.functional

# Layers and what they take.
LAYERS = {
    "Linear": (lambda: torch.nn.Linear(300, 200), lambda: random(2, 5, 300)),
    "vector": (lambda: torch.nn.Linear(16, 8, bias=False), lambda: random(16)),
    "Conv1d": (lambda: torch.nn.Conv1d(6, 8, 3, padding=1), lambda: random(2, 6, 9)),
    "Conv2d": (
        lambda: torch.nn.Conv2d(6, 8, 3, groups=2, padding=1, padding_mode="reflect"),
        lambda: random(2, 6, 9, 7),
    ),
    "Conv3d": (lambda: torch.nn.Conv3d(3, 5, 2, stride=2), lambda: random(1, 3, 4, 6, 4)),
    "ConvTranspose1d": (lambda: torch.nn.ConvTranspose1d(6, 8, 3, 2), lambda: random(2, 6, 9)),
    "ConvTranspose2d": (
        lambda: torch.nn.ConvTranspose2d(6, 8, 3, 2, 1, 1, groups=2, dilation=2),
        lambda: random(2, 6, 9, 7),
    ),
    "ConvTranspose3d": (lambda: torch.nn.ConvTranspose3d(3, 5, 2), lambda: random(1, 3, 4, 2, 3)),
    "Embedding": (lambda: torch.nn.Embedding(30, 20), lambda: torch.randint(0, 30, (2, 7))),
}


@pytest.fixture(params=LAYERS)
def case(request):
    torch.manual_seed(0)
    make, inputs = LAYERS[request.param]
    return make(), inputs()


def with_plain_weight(layer, dtype=torch.float32):
    """The layer's plain twin with the numbers that are stored: it has the expected results."""
    return models.disable_layerwise_casting(copy.deepcopy(layer)).to(dtype)


@pytest.mark.parametrize("storage_dtype", ["e4m3", torch.float8_e5m2])
def test_computes_with_what_is_stored(case, storage_dtype):
    layer, x = case
    expected = layer(x)
    kind = type(layer)
    assert models.enable_layerwise_casting(layer, storage_dtype, torch.float32) is layer
    assert type(layer) is kind
    codes = torch.float8_e5m2 if storage_dtype != "e4m3" else torch.float8_e4m3fn
    assert layer.weight.codes.dtype == codes
    y = layer(x)
    assert y.dtype == torch.float32
    assert relative_error(y, with_plain_weight(layer)(x)) < 1e-6
    assert 1e-3 < relative_error(y, expected) < (0.04 if storage_dtype == "e4m3" else 0.08)
    assert f", weight=Fp8Weight({list(layer.weight.shape)}, torch.float8_e" in repr(layer)


def test_computes_in_the_compute_dtype(case):
    layer, x = case
    models.enable_layerwise_casting(layer)
    assert layer.weight.compute_dtype == torch.bfloat16
    y = layer(x)
    assert y.dtype == torch.float32  # as before: what follows is in FP32
    plain = with_plain_weight(layer)
    if isinstance(layer, torch.nn.Embedding):
        assert torch.equal(y, plain(x))
        return
    half = plain.bfloat16()(x.bfloat16()).float()
    assert torch.equal(y, half) or relative_error(y, half) < 2e-3  # sums in another order
    with torch.autocast("cpu", torch.float16):
        y = layer(x)
    assert y.dtype == torch.float16
    assert relative_error(y, plain.float()(x)) < 2e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_undo_gives_back_dtype_and_what_was_kept(case, dtype, log):
    layer, _ = case
    layer.to(dtype).weight.requires_grad_(False)
    before, text = copy.deepcopy(layer.state_dict()), repr(layer)
    models.enable_layerwise_casting(layer)
    numbers = layer.weight.dequantize(torch.float32)
    models.disable_layerwise_casting(layer)
    assert "what FP8 has kept" in log[-1]
    assert repr(layer) == text
    assert type(layer.weight) is torch.nn.Parameter
    assert layer.weight.dtype == dtype
    assert not layer.weight.requires_grad
    assert list(layer.state_dict()) == list(before)
    assert torch.equal(layer.weight.float(), numbers.to(dtype).float())
    if dtype != torch.float16:
        assert torch.equal(layer.weight.float(), numbers)
    # Once more loses nothing more.
    weight = layer.weight.detach().clone()
    models.disable_layerwise_casting(models.enable_layerwise_casting(layer))
    assert torch.equal(layer.weight, weight)


def test_originals_come_back_exactly(case, log):
    layer, _ = case
    before = copy.deepcopy(layer.state_dict())
    models.enable_layerwise_casting(layer, keep_originals=True, non_blocking=True)
    other, loaded = copy.deepcopy(layer), copy.deepcopy(layer)
    for one in (layer, other.half().float()):
        after = models.disable_layerwise_casting(one).state_dict()
        assert "have kept" not in log[-1]
        assert all(torch.equal(after[key], value) for key, value in before.items() if key != "bias")
        assert one.weight.requires_grad
    numbers = 2 * before["weight"]
    loaded.load_state_dict({**before, "weight": numbers})  # of which there is no original
    models.disable_layerwise_casting(loaded)
    assert "what FP8 has kept" in log[-1]
    assert 1e-3 < relative_error(loaded.weight, numbers) < 0.05


def test_gradients_pass(case):
    layer, x = case
    if not x.is_floating_point():
        pytest.skip("its input has no gradient")
    models.enable_layerwise_casting(layer, compute_dtype=torch.float32)
    plain = with_plain_weight(layer)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    y, expected = layer(leaves[0]), plain(leaves[1])
    dy = torch.randn_like(y)
    layer.share_memory()  # moves the weight, of which autograd holds another tensor
    y.backward(dy)
    expected.backward(dy)
    assert relative_error(leaves[0].grad, leaves[1].grad) < 1e-6
    assert layer.weight.grad is None
    if layer.bias is not None:
        assert relative_error(layer.bias.grad, plain.bias.grad) < 1e-6


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(8, 8), lambda: torch.nn.Conv1d(3, 3, 1)])
def test_a_copy_lives_as_long_as_its_forward(make, monkeypatch):
    """Also where autograd would keep it for backward."""
    model = torch.nn.Sequential(*(make() for _ in range(4)))
    models.enable_layerwise_casting(model, compute_dtype=torch.float32)
    made, copies, alive = octofold.ScaledTensor.dequantize, [], []

    def tracked(*arguments):
        alive.append(sum(one() is not None for one in copies))
        copied = made(*arguments)
        copies.append(weakref.ref(copied.untyped_storage()))
        return copied

    monkeypatch.setattr(octofold.ScaledTensor, "dequantize", tracked)
    x = random(3, 8).requires_grad_()
    y = model(x)
    assert alive == [0, 0, 0, 0]
    y.sum().backward()
    assert len(alive) == 8
    assert x.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Linear", "Conv2d", "Embedding"])
def test_compiles_without_breaks(name):
    make, inputs = LAYERS[name]
    layer, x = make(), inputs()
    models.enable_layerwise_casting(layer)
    if x.is_floating_point():
        x.requires_grad_()
    expected = layer(x)
    torch.compiler.reset()  # torch counts compilations of all its layers together
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert torch.equal(y, expected)
    if x.is_floating_point():
        y.sum().backward()
        (gradient,) = torch.autograd.grad(layer(x).sum(), x)
        assert relative_error(x.grad, gradient) < 1e-2


def test_memory_formats_stay():
    layer = torch.nn.Conv2d(6, 8, 3).to(memory_format=torch.channels_last)
    strides = layer.weight.stride()
    weight = layer.weight.detach().clone()
    models.enable_layerwise_casting(layer)
    assert layer.weight.stride() == strides
    models.disable_layerwise_casting(layer)
    assert layer.weight.stride() == strides
    assert 1e-3 < relative_error(layer.weight, weight) < 0.04
    models.enable_layerwise_casting(layer)
    x = random(1, 6, 5, 5)
    y = layer(x)
    layer.to(memory_format=torch.contiguous_format)
    assert layer.weight.is_contiguous()
    assert relative_error(layer(x), y) < 1e-2


def test_subclasses_with_a_forward_of_their_own():
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            assert self.weight.dtype == torch.float32
            return 2 * functional.linear(x, self.weight) + self.bias

    layer, x = Scaled(30, 20), random(3, 30)
    expected = layer(x)
    models.enable_layerwise_casting(layer, compute_dtype="float32")
    y = layer(x.requires_grad_())
    assert 1e-3 < relative_error(y, expected) < 0.05
    y.sum().backward()
    assert x.grad is not None
