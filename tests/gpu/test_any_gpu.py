"""One behaviour everywhere, on the GPU at hand and as an older one (OCTOFOLD_TARGET=sm_80): layers
with FP8 weights and experts compute. What they become is tests/python/nn/test_any_gpu.py's."""

import copy

import octofold
import pytest
from octofold._info import EXPERTS, FP8, LINEAR, NATIVE, TRAINED
from octofold.nn.recipes.kernels import layer_products

from tests.gpu.gpu_support import DEVICE, DTYPES, HALVES, skip_without, torch
from tests.gpu.layer_support import step
from tests.python.nn.expert_support import choices
from tests.python.nn.layer_support import relative_error

skip_without("products with FP8 weights")

nn = octofold.nn
TOKENS, HIDDEN, INNER, COUNT, SLOTS = 260, 512, 384, 12, 4
GRANULARITIES = {"blockwise": "128x128", "rowwise": "channel", "tensorwise": "tensor"}
LINEARS = layer_products(LINEAR, FP8, DEVICE)


def random(*shape, dtype=HALVES[0]):
    return torch.randn(shape, device=DEVICE).to(DTYPES[dtype])


def routing(tokens=TOKENS):
    ids = choices((tokens,), COUNT, SLOTS, empty=2).to(DEVICE)
    return ids, torch.rand((tokens, SLOTS), device=DEVICE)


def test_trained_experts_go_the_way_of_the_gpu():
    """In FP8, or as torch computes them."""
    module = nn.Experts(HIDDEN, INNER, COUNT, bias=True, device=DEVICE, dtype=DTYPES[HALVES[0]])
    reference = copy.deepcopy(module).cpu().float()
    x, dy, (ids, weights) = random(TOKENS, HIDDEN), random(TOKENS, HIDDEN), routing()
    inputs = x.float().cpu(), ids.cpu(), weights.cpu()
    expected = step(reference, inputs, dy.float().cpu())
    native = layer_products(EXPERTS, TRAINED, DEVICE).how == NATIVE
    for left, right in zip(step(module, (x, ids, weights), dy), expected, strict=True):
        assert relative_error(left.cpu(), right) < (0.05 if native else 0.12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("recipe", GRANULARITIES)
def test_inference_layers_compute_anywhere(recipe, dtype):
    linear = torch.nn.Linear(HIDDEN, INNER, device=DEVICE)
    layer = nn.inference_linear(linear, recipe)
    weight = layer.weight.scaled.dequantize("float32")
    for tokens in (1, 40, 300, 2000):
        x, dy = random(tokens, HIDDEN, dtype=dtype), random(tokens, INNER, dtype=dtype)
        x.requires_grad_()
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        limit = 0.06 if LINEARS.how == NATIVE else 0.02
        assert relative_error(y.float(), x.float() @ weight.t() + layer.bias) < limit
        # 0.0604 was seen on an H200.
        limit = 0.08 if LINEARS.how == NATIVE else 0.02
        assert relative_error(dx.float(), dy.float() @ weight) < limit
