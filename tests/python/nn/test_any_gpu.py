"""One behaviour everywhere: what layers become, and which way they compute, on every GPU."""

import math

import octofold
import pytest
import torch
from octofold import nn
from octofold._core.formats import GRANULARITIES
from octofold.nn.conversion.fp8_layers import frozen_weight
from octofold.nn.layers.fp8_parameters import hold
from octofold.nn.recipes import kernels

from tests.python import gpu_fakes
from tests.python.nn.layer_support import random

NATIVE = gpu_fakes.NATIVE
WITHOUT = ("7.5", "8.0", "8.6", "10.0")


def model(requires_grad=True):
    made = torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.ReLU(), torch.nn.Linear(384, 64))
    return made.requires_grad_(requires_grad).bfloat16()


def test_the_fakes_are_the_tables(pretend):
    assert sorted((*NATIVE, *WITHOUT)) == sorted(gpu_fakes.GPUS)
    for name in gpu_fakes.GPUS:
        pretend(name)
        device = torch.device("cpu")
        assert kernels.has_native(device) == (name in NATIVE)
        assert kernels.has_weight_only(device, torch.float16)
        assert kernels.has_weight_only(device, torch.bfloat16) == (name != "7.5")


@pytest.mark.parametrize("name", gpu_fakes.GPUS)
def test_trained_layers(name, pretend):
    pretend(name)
    report = nn.convert(model())
    layers = [report.model[0], report.model[2]]
    if name in NATIVE:
        assert all(type(layer) is nn.Linear for layer in layers)
        assert not report.left_alone
        return
    assert all(type(layer) is torch.nn.Linear for layer in layers)
    assert not report.converted
    assert "left alone: 2, its products stay in high precision: expected a GPU" in str(report)
    assert f"got {name}" in str(report)
    restored = nn.restore(report.model)
    assert restored is report.model


@pytest.mark.parametrize("name", gpu_fakes.GPUS)
def test_frozen_layers(name, pretend):
    pretend(name)
    made = model(requires_grad=False)
    x = random(40, 256, dtype=torch.bfloat16)
    before = made(x)
    report = nn.convert(made)
    layers = [report.model[0], report.model[2]]
    expected = nn.Linear if name in NATIVE else torch.nn.Linear
    assert all(type(layer) is expected for layer in layers)
    assert all(isinstance(layer.weight, nn.Fp8Weight) != (name in NATIVE) for layer in layers)
    assert not report.left_alone
    assert ("weight-only here" in str(report)) == (name in WITHOUT)
    assert ("for bfloat16 by a copy" in str(report)) == (name == "7.5")
    error = (report.model(x) - before).norm() / before.norm()
    assert 1e-3 < error < 0.08


def test_trained_biases_are_kept(pretend):
    pretend("8.0")
    layer = torch.nn.Linear(256, 64)
    layer.weight.requires_grad_(False)
    report = nn.convert(layer)
    assert report.model is layer


def test_a_recipe_without_an_fp8_output(pretend):
    pretend("8.0")
    grad_input = nn.recipes.blockwise.grad_input
    recipe = nn.Recipe(output=None, grad_input=grad_input, grad_weight=None)
    report = nn.convert(model(requires_grad=False), recipe)
    assert "has x · weightᵀ in high precision" in str(report)
    assert type(report.model[0]) is torch.nn.Linear


def test_conv1d_is_left(pretend):
    conv1d = pytest.importorskip("transformers").pytorch_utils.Conv1D(64, 256)
    pretend("8.6")
    for layer in (conv1d, conv1d.requires_grad_(False)):
        assert nn.convert(torch.nn.ModuleList([layer])).model[0] is layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_trained_layers_that_come_to_another_gpu(dtype, pretend, log):
    """Converted where there are FP8 products, run where there are none."""
    made = nn.convert(model().to(dtype)).model
    plain = torch.nn.Sequential(*made)
    x = random(9, 256, dtype=dtype)
    x.requires_grad_()
    pretend({torch.bfloat16: "8.0", torch.float32: "8.6"}[dtype])  # what was said is not said again
    y = made(x)
    assert sum("no FP8 products: expected a GPU of" in message for message in log) == 2
    y.sum().backward()
    found = [x.grad, *(parameter.grad for parameter in made.parameters())]
    x.grad = None
    made.zero_grad()
    plain = nn.restore(plain)
    assert type(plain[0]) is torch.nn.Linear
    z = plain(x)
    z.sum().backward()
    assert torch.equal(y, z)
    for one, other in zip(found, [x.grad, *(p.grad for p in plain.parameters())], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", [
    lambda: nn.MLP(256, 128, dtype=torch.bfloat16, force_fp8=True),
    lambda: nn.NormLinear(256, 128, dtype=torch.bfloat16, force_fp8=True),
    lambda: nn.Linear(256, 128, dtype=torch.bfloat16, recipe="tensorwise", main_grad=True),
])  # fmt: skip
def test_modules_that_come_to_another_gpu(make, pretend, casts):
    module = make()
    x = random(9, 256, dtype=torch.bfloat16)
    native = module(x)
    assert casts
    casts.clear()
    pretend("10.0")
    y = module(x)
    y.sum().backward()
    assert not casts
    error = (y - native).norm() / native.norm()
    assert 1e-3 < error < 0.1


IN, OUT = 384, 200


def parameter(plain, weight, compute):
    hold(plain, nn.Fp8Weight.of(weight, plain.weight.dtype, compute=compute))
    return plain


def frozen(plain, weight, compute):
    hold(plain, frozen_weight(weight, plain.weight.dtype, compute))
    return plain


def is_native(holder, compute, name, tokens):
    """True if activations are cast, on a GPU or (None) on the CPU."""
    if compute in ("weight-only", "copy") or name in WITHOUT:
        return False
    on_cpu = name is None and holder is not frozen  # which takes it for a GPU with FP8 units
    return compute == "native" or (tokens > 16 and not on_cpu)


@pytest.mark.parametrize("format", [*GRANULARITIES, "e5m2 128x128", "e5m2 channel"])
@pytest.mark.parametrize(
    ("holder", "compute"),
    [
        *((frozen, word) for word in ("auto", "native", "weight-only")),
        *((parameter, word) for word in nn.Fp8Weight.COMPUTE),
    ],
)
@pytest.mark.parametrize(
    "mode", ["no_grad", "grad", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_a_weight_of_any_scales_anywhere(mode, holder, compute, format, pretend):
    """Each holder of an FP8 weight takes every granularity, and computes as the GPU wants it."""
    plain = torch.nn.Linear(IN, OUT).requires_grad_(False).bfloat16()
    weight = octofold.quantize(plain.weight, format)
    made = holder(plain, weight, compute)
    values, bias = weight.dequantize("float32").double(), plain.bias.double()
    for name in ("9.0", "8.0") if mode == "compiled" else (None, *gpu_fakes.GPUS):
        if name is not None:
            pretend(name)
        layer = made
        if mode == "compiled":
            torch.compiler.reset()
            layer = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)
        for rows in ((17,),) if mode == "compiled" else ((0,), (), (16,), (17,), (2, 150)):
            x = random(*rows, IN, dtype=torch.bfloat16).requires_grad_(mode != "no_grad")
            y = layer(x)
            assert y.dtype == x.dtype
            native = is_native(holder, compute, name, math.prod(rows))
            least, most = (0.01, 0.06) if native else (0, 4e-3)
            expected = x.double() @ values.T + bias
            error, norm = (y.double() - expected).norm(), expected.norm()
            assert least * norm <= error <= most * norm, (name, rows)
            if mode != "no_grad":
                dy = random(*rows, OUT, dtype=torch.bfloat16)
                (dx,) = torch.autograd.grad(y, x, dy)
                expected = dy.double() @ values
                assert (dx.double() - expected).norm() <= most * expected.norm(), (name, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_activations(dtype, pretend):
    """16 bits meet the codes themselves; float32, and bfloat16 on Turing, a copy of them."""
    layer = nn.inference_linear(torch.nn.Linear(IN, OUT))
    x = random(33, IN, dtype=dtype)
    expected = x.double() @ layer.weight.scaled.dequantize("float32").double().T + layer.bias
    for name in WITHOUT:
        pretend(name)
        with torch.no_grad():
            error = (layer(x).double() - expected).norm() / expected.norm()
        assert error < (1e-3 if dtype == torch.float16 else 1e-6)


def test_info_and_matrix_tell(pretend):
    ways = {
        layer: [by_target[name].how for name in gpu_fakes.GPUS]
        for layer, by_target in gpu_fakes.matrix().layers.items()
    }
    of_linear = ["native" if name in NATIVE else "left" for name in gpu_fakes.GPUS]
    assert ways["linear layers with trained weights"] == of_linear
    assert ways["experts with trained weights"] == of_linear
    assert ways["linear layers with FP8 weights"] == [
        {"left": "weight-only"}.get(way, way) for way in of_linear
    ]
    assert (
        gpu_fakes.matrix().layers["experts with FP8 weights"]["8.0"].why_not.startswith("expected")
    )
    gpu = pretend("8.0")
    assert "; linear layers with trained weights: left" in str(gpu)
    assert "experts with FP8 weights: weight-only" in str(gpu)


def test_a_model_saved_elsewhere(tmp_path, pretend):
    """On Hopper, and loaded by a GPU without FP8 products, and the other way round."""
    x = random(40, 256, dtype=torch.float16)
    pretend("9.0")
    made = model(requires_grad=False).half()
    nn.convert_weight_only(made, activations="auto")
    native = made(x)
    octofold.models.save(made, tmp_path / "of_hopper")
    pretend("8.0")
    here = octofold.models.load(model().half(), tmp_path / "of_hopper")
    exact = here(x)
    assert 0.01 < (exact - native).float().norm() / native.float().norm() < 0.06
    octofold.models.save(here, tmp_path / "of_ampere")
    pretend("9.0")
    assert torch.equal(octofold.models.load(model().half(), tmp_path / "of_ampere")(x), native)
