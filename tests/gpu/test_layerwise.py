"""Layerwise casting on a GPU: each way to compute a layer, gradients, graphs, memory, moves."""

import copy

import octofold
import pytest
from octofold._info import CAST, NATIVE, WEIGHT_ONLY
from octofold.nn.autograd.frozen import linear_compute

from tests.gpu.gpu_support import (
    DEVICE,
    HALVES,
    ON_GPU,
    captured,
    needs_gpu,
    nothing_waits,
    skip_without,
    torch,
)
from tests.gpu.layer_support import random
from tests.python.nn.layer_support import relative_error

skip_without("casts")

models = octofold.models
HALF = [getattr(torch, name) for name in HALVES]
IN, OUT = 1024, 384


def has(operation):
    return not ON_GPU or octofold.info().gpus[DEVICE.index or 0].operations[operation].available


needs_native = pytest.mark.skipif(not has("products"), reason="no products of FP8 with FP8")
needs_weight_only = pytest.mark.skipif(
    not has("products with FP8 weights"), reason="no products with FP8 weights"
)


def linear_of(dtype, storage_dtype="e4m3", **options):
    """A layer with casting, and its twin with the numbers that are stored, in FP64 on the CPU."""
    layer = torch.nn.Linear(IN, OUT, device=DEVICE, dtype=dtype)
    models.enable_layerwise_casting(layer, storage_dtype, **options)
    return layer, models.disable_layerwise_casting(copy.deepcopy(layer)).cpu().double()


@pytest.mark.parametrize("tokens", [1, 16, 17, 100, 300, 2048])
@pytest.mark.parametrize("storage_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    "compute",
    [
        *("auto", "weight-only", "copy"),
        pytest.param("native", marks=needs_native),
    ],
)
@pytest.mark.parametrize("dtype", HALF)
def test_linear(dtype, compute, storage_dtype, tokens):
    layer, plain = linear_of(dtype, storage_dtype)
    layer.weight.compute = compute
    x, dy = random(2, tokens, IN, dtype=dtype), random(2, tokens, OUT, dtype=dtype)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.backward(dy)
    with torch.no_grad():
        assert torch.equal(layer(x), y)
    exact = x.cpu().double().requires_grad_()
    expected = plain(exact)
    expected.backward(dy.cpu().double())
    way = linear_compute(x.shape, OUT, x.device, dtype, compute)
    assert relative_error(y.cpu(), expected) < (0.04 if way == NATIVE else 4e-3)
    assert relative_error(leaf.grad.cpu(), exact.grad) < 4e-3
    assert relative_error(layer.bias.grad.cpu(), plain.bias.grad) < 4e-3


@needs_gpu
@needs_native
@needs_weight_only
def test_what_is_chosen_where_there_are_fp8_units():
    dtype, device = HALF[-1], torch.empty(0, device=DEVICE).device  # with its number

    def ways(compute, tokens, features=(IN, OUT), dtype=dtype):
        return [
            linear_compute((n, features[0]), features[1], device, dtype, compute) for n in tokens
        ]

    assert ways("auto", (1, 16, 17, 4096), (IN, 1024)) == [WEIGHT_ONLY, WEIGHT_ONLY, NATIVE, NATIVE]
    assert ways("auto", (100, 1024, 4096)) == [NATIVE, NATIVE, CAST]
    assert ways("auto", (1, 17, 2000), (100, 1024)) == [WEIGHT_ONLY, WEIGHT_ONLY, CAST]
    assert ways("weight-only", (16, 128, 2000)) == [WEIGHT_ONLY, WEIGHT_ONLY, CAST]
    assert ways("native", (1, 4096)) == [NATIVE, NATIVE]
    assert ways("auto", (1, 17), dtype=torch.float32) == [NATIVE, NATIVE]


def block(dtype):
    layers = [torch.nn.Linear(2048, 2048, device=DEVICE, dtype=dtype) for _ in range(12)]
    return torch.nn.Sequential(*layers)


@needs_gpu
@pytest.mark.parametrize("tokens", [16, 512])
@pytest.mark.parametrize("options", [{}, {"compute": "weight-only"}])
def test_memory(options, tokens):
    """0.55 of what 16 bits take, and one copy of one layer where there are copies."""
    model = block(HALF[-1]).requires_grad_(False)
    size = sum(one.numel() * one.itemsize for one in model.parameters())
    for_graph = random(tokens, 2048, dtype=HALF[-1]).requires_grad_()
    before = torch.cuda.memory_allocated(DEVICE)
    models.enable_layerwise_casting(model, **options)
    saved = before - torch.cuda.memory_allocated(DEVICE)
    assert saved > 0.45 * size
    model(for_graph)  # compiles, and takes what libraries take once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(DEVICE)
    resident = torch.cuda.memory_allocated(DEVICE)
    y = model(for_graph)
    peak = torch.cuda.max_memory_allocated(DEVICE) - resident
    activations = 16 * tokens * 2048 * 2 + 2**22
    assert peak < 2048 * 2048 * 2 * 1.01 + activations
    del y


@needs_gpu
@pytest.mark.parametrize("tokens", [8, 256])
@pytest.mark.parametrize("options", [{}, {"compute": "weight-only"}])
def test_graphs_and_no_synchronization(options, tokens):
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 64)
    ).to(DEVICE, HALF[-1])
    models.enable_layerwise_casting(model, **options)
    ids = torch.randint(0, 100, (tokens,), device=DEVICE)
    with torch.no_grad():
        expected = model(ids)
        torch.cuda.synchronize()
        with nothing_waits():
            model(ids)
        graph, y = captured(lambda: model(ids))
        for _ in range(2):
            y.zero_()
            graph.replay()
            assert torch.equal(y, expected)


def test_moves_and_comes_back():
    dtype = HALF[-1]
    model = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.Conv2d(3, 8, 3)).to(dtype)
    before = copy.deepcopy(model.state_dict())
    cpu = models.enable_layerwise_casting(copy.deepcopy(model))
    model.to(DEVICE)
    models.enable_layerwise_casting(model, keep_originals=True, non_blocking=True)
    for left, right in zip(model.parameters(), cpu.parameters(), strict=True):
        assert left.device.type == DEVICE.type
        assert torch.equal(left.cpu().view(torch.uint8), right.view(torch.uint8))
    model.cpu().to(DEVICE).float().to(dtype)
    assert model[0].weight.codes.dtype == torch.float8_e4m3fn
    models.disable_layerwise_casting(model)
    assert model[0].weight.device.type == DEVICE.type
    for key, value in model.state_dict().items():
        assert torch.equal(value.cpu(), before[key])
