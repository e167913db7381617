"""Linear layers in one call of the library each way: the bits of casts and products one after
another, with every recipe that has them, from one token to more than a cluster casts; casts in
graphs."""

import octofold
import pytest
from octofold.nn.autograd import one_call

from tests.gpu.gpu_support import DEVICE, assert_same_bits, needs_gpu, skip_without, torch

skip_without("products")

RECIPES = ("blockwise", "rowwise", "tensorwise")
BF16 = {"device": DEVICE, "dtype": torch.bfloat16}


def apart(monkeypatch):
    """Torch has to see all operations."""
    monkeypatch.setattr(one_call, "torch_is_watching", lambda: True)


def results(layer, x, dy):
    """y and the gradients."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(dy)
    return [y.detach(), *(each.grad.clone() for each in (x, *layer.parameters()))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tokens", [1, 8, 128, 129, 400, 1024, 1100])
def test_has_the_bits_of_operations_apart(tokens, recipe, dtype, monkeypatch):
    torch.manual_seed(tokens)
    layer = octofold.nn.Linear(520, 264, device=DEVICE, dtype=dtype, recipe=recipe, force_fp8=True)
    x = torch.randn(tokens, 520, device=DEVICE, dtype=torch.bfloat16)
    dy = torch.randn(tokens, 264, device=DEVICE, dtype=torch.bfloat16)
    at_once = results(layer, x, dy)
    with octofold.nn.keep_casts(layer):
        held = results(layer, x, dy)
    apart(monkeypatch)
    for one, other, expected in zip(at_once, held, results(layer, x, dy), strict=True):
        assert_same_bits(one, expected)
        assert_same_bits(other, expected)


@needs_gpu
def test_capture_leaves_no_casts_behind():
    """They lie in the graph's memory. Nor does a graph use what keep_casts() keeps, which goes as
    that is left."""
    layer = octofold.nn.Linear(1024, 384, device=DEVICE, force_fp8=True).requires_grad_(False)
    x = torch.randn(520, 1024, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with octofold.nn.keep_casts(layer):
        expected = layer(x)
        with torch.cuda.graph(graph):
            y = layer(x)
        assert torch.equal(layer(x), expected)
    layer.weight.mul_(2)
    graph.replay()
    assert torch.equal(y, layer(x))
    assert not torch.equal(y, expected)
