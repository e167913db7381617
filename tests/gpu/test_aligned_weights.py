"""Layers with FP8 weights of checkpoints: rows of codes that begin at multiples of 32 bytes on a
GPU, however they came there."""

import contextlib
import copy

import octofold
import pytest
from octofold.nn.layers.fp8_parameters import hold
from octofold.nn.layers.saving import coded_state_dict

from tests.gpu.gpu_support import DEVICE, ON_GPU, normal, torch

nn = octofold.nn
IN, OUT = 1003, 264
STRIDE = 1024 if ON_GPU else IN


def twin(device):
    torch.manual_seed(0)
    linear = torch.nn.Linear(IN, OUT).to(torch.bfloat16)
    return nn.inference_linear(linear, "blockwise").to(device)


def expect_same(layer, plain):
    assert layer.weight.codes.stride() == (STRIDE, 1)
    codes, expected = (each.weight.codes.view(torch.uint8).cpu() for each in (layer, plain))
    assert torch.equal(codes, expected)


def test_moved_and_copied(generator):
    plain, layer = twin("cpu"), twin("cpu")
    layer.to(DEVICE)
    expect_same(layer, plain)
    expect_same(copy.deepcopy(layer), plain)
    x = normal(generator, 40, IN, dtype="bfloat16")
    with torch.no_grad():
        y, expected = layer(x).float(), plain(x.cpu()).float().to(DEVICE)
    # Other GPUs than Hopper and Ada multiply x as it is, which here is cast to FP8.
    assert (y - expected).norm() < 4e-2 * expected.norm()
    assert layer.to(DEVICE).weight.codes.data_ptr() == layer.weight.codes.data_ptr()


@pytest.mark.parametrize("in_codes", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_loaded(assign, in_codes):
    plain = twin("cpu")
    with coded_state_dict(plain) if in_codes else contextlib.nullcontext():
        state = {name: value.to(DEVICE) for name, value in plain.state_dict().items()}
    layer = twin(DEVICE)
    layer.load_state_dict(state, assign=assign)
    expect_same(layer, plain)
    with coded_state_dict(layer):  # files have no gaps
        assert layer.state_dict()["weight"].is_contiguous()


def test_held():
    plain = twin("cpu")
    weight = plain.weight
    codes = torch.empty(OUT, IN, dtype=weight.codes.dtype, device=DEVICE).copy_(weight.codes)
    layer = twin(DEVICE)
    hold(layer, weight.like(codes, weight.scale.to(DEVICE)))
    expect_same(layer, plain)
