"""Layers with FP8 weights of checkpoints: rows of codes that begin at multiples of 32 bytes on a
GPU, however they came there."""

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, ON_GPU, normal, torch

nn = octofold.nn
IN, OUT = 1003, 264
STRIDE = 1024 if ON_GPU else IN


def twin(device):
    torch.manual_seed(0)
    linear = torch.nn.Linear(IN, OUT).to(torch.bfloat16)
    return nn.inference_linear(linear, "blockwise").to(device)


def expect_same(layer, plain):
    assert layer.weight.scaled.data.stride() == (STRIDE, 1)
    codes, expected = (each.weight.scaled.data.view(torch.uint8).cpu() for each in (layer, plain))
    assert torch.equal(codes, expected)


@pytest.mark.parametrize("is_parameter", [False, True])
def test_moved(is_parameter, generator):
    plain, layer = twin("cpu"), twin("cpu")
    if is_parameter:
        layer.keep_as_parameter()
    layer.to(DEVICE)
    expect_same(layer, plain)
    x = normal(generator, 40, IN, dtype="bfloat16")
    with torch.no_grad():
        y, expected = layer(x).float(), plain(x.cpu()).float().to(DEVICE)
    assert (y - expected).norm() < 1e-2 * expected.norm()
    assert layer.to(DEVICE).weight.scaled.data.data_ptr() == layer.weight.scaled.data.data_ptr()


@pytest.mark.parametrize("assign", [False, True])
def test_loaded(assign):
    plain = twin("cpu")
    state = {name: value.to(DEVICE) for name, value in plain.state_dict().items()}
    layer = nn.InferenceLinear(IN, OUT, device=DEVICE, dtype=torch.bfloat16)
    layer.load_state_dict(state, assign=assign)
    expect_same(layer, plain)
    # Files have no gaps.
    assert layer.state_dict()["weight"].is_contiguous()


def test_held():
    plain = twin("cpu")
    weight = plain.weight.scaled
    on_device = octofold.ScaledTensor(
        weight.data.contiguous().to(DEVICE), weight.scale.to(DEVICE), weight.granularity
    )
    layer = twin(DEVICE)
    layer.hold(on_device, None)
    expect_same(layer, plain)
