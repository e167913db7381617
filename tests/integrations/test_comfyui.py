"""ComfyUI's FP8 weights by our products: with the real comfy-kitchen, and, where OCTOFOLD_COMFYUI
names a checkout of ComfyUI (it is not on PyPI), with its layers, its LoRA and its loader of custom
nodes."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import comfy_kitchen.tensor as kitchen
import pytest
import torch
from octofold.integrations import comfyui
from octofold.integrations.comfyui import nodes, products
from octofold.integrations.hosts import HOSTS

from tests.python.nn.layer_support import relative_error

aten = torch.ops.aten
COMFYUI = os.environ.get("OCTOFOLD_COMFYUI", "")
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture
def calls(monkeypatch):
    """Octofold in the table; the shapes of the inputs that came to its product."""
    shapes = []
    real = products.product

    def product(x, weight, bias):
        shapes.append(tuple(x.shape))
        return real(x, weight, bias)

    monkeypatch.setattr(products, "product", product)
    assert comfyui.register()
    yield shapes
    comfyui.unregister()


def weight_of(rows, columns, dtype=torch.float8_e4m3fn, wide=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator, dtype=wide) / columns**0.5
    return kitchen.QuantizedTensor.from_float(values, "TensorCoreFP8Layout", dtype=dtype)


def exact(weight):
    return weight._qdata.double() * weight._params.scale.double()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(192,), (1, 192), (5, 192), (2, 30, 192), (0, 192)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_linear(calls, dtype, wide, shape, bias, inference):
    weight = weight_of(136, 192, dtype, wide)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(wide)
    b = torch.randn(136).to(wide) if bias else None
    with torch.inference_mode(inference), torch.no_grad():
        y = torch.nn.functional.linear(x, weight, b)
    expected = x.double() @ exact(weight).T + (0 if b is None else b.double())
    assert (y.dtype, y.shape) == (wide, (*shape[:-1], 136))
    if x.numel():
        # No rounding but that of the result: nothing was cast to FP8.
        assert relative_error(y, expected) < {torch.float32: 2e-6}.get(wide, 4e-3)
    assert len(calls) == 1


def test_gradient_by_the_input_and_lora_at_run_time(calls):
    """Adapters of low rank beside a frozen weight, as ComfyUI's bypass and trainer have them."""
    weight = weight_of(96, 128)
    down = torch.randn(4, 128).div(11).bfloat16().requires_grad_()
    up = torch.randn(96, 4).bfloat16().requires_grad_()
    x = torch.randn(7, 128).bfloat16().requires_grad_()
    y = torch.nn.functional.linear(x, weight) + (x @ down.T) @ up.T
    dy = torch.randn_like(y)
    y.backward(dy)
    merged = exact(weight) + up.detach().double() @ down.detach().double()
    assert relative_error(y.detach(), x.detach().double() @ merged.T) < 8e-3
    assert relative_error(x.grad, dy.double() @ merged) < 8e-3
    assert (
        relative_error(up.grad, dy.double().T @ (x.detach().double() @ down.detach().double().T))
        < 8e-3
    )
    assert len(calls) == 1


def test_a_weight_with_a_lora_merged_and_cast_again(calls):
    """ComfyUI makes such a weight of an FP8 weight and a LoRA that is loaded as usual."""
    weight = weight_of(96, 128)
    low_rank = torch.randn(96, 4).bfloat16() @ torch.randn(4, 128).div(11).bfloat16()
    patched = weight.requantize_from_float(weight.dequantize() + low_rank, scale="recalculate")
    assert not torch.equal(patched._qdata, weight._qdata)
    x = torch.randn(9, 128).bfloat16()
    with torch.inference_mode():
        y = torch.nn.functional.linear(x, patched)
    assert relative_error(y, x.double() @ exact(patched).T) < 4e-3
    assert calls == [(9, 128)]


def test_what_is_comfy_kitchens_stays_so(calls):
    weight, x = weight_of(64, 128), torch.randn(5, 128).bfloat16()
    cast = kitchen.QuantizedTensor.from_float(x, "TensorCoreFP8Layout")
    with torch.inference_mode():
        both = torch.nn.functional.linear(cast, weight)
        looked_up = torch.nn.functional.embedding(torch.tensor([3, 1]), weight)
    comfyui.unregister()
    with torch.inference_mode():
        assert torch.equal(both, torch.nn.functional.linear(cast, weight))
    assert torch.equal(looked_up, weight.dequantize()[[3, 1]])
    assert calls == []


def test_layouts_of_comfyui_inherit_it(calls):
    """ComfyUI registers subclasses of comfy-kitchen's layout for the weights of its models."""

    class Layout(kitchen.TensorCoreFP8Layout):
        pass

    kitchen.register_layout_class("TensorCoreFP8E4M3Layout", Layout)
    weight = weight_of(64, 128)
    weight = kitchen.QuantizedTensor(weight._qdata, "TensorCoreFP8E4M3Layout", weight._params)
    with torch.inference_mode():
        torch.nn.functional.linear(torch.randn(5, 128).bfloat16(), weight)
    assert calls == [(5, 128)]


def test_off_again(calls):
    assert comfyui.register()  # a second time changes nothing
    comfyui.unregister()
    with torch.inference_mode():
        torch.nn.functional.linear(torch.randn(5, 128).bfloat16(), weight_of(64, 128))
    assert calls == []
    comfyui.unregister()


@pytest.mark.parametrize(
    ("found", "switch", "reason"),
    [
        ("0.2.40", "vllm", "switched off by OCTOFOLD_INTEGRATIONS=vllm"),
        ("0.4.1", "", f"{HOSTS['comfyui'].wanted}, found comfy-kitchen 0.4.1"),
    ],
)
def test_it_stays_out(monkeypatch, caplog, found, switch, reason):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", switch)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    caplog.set_level(logging.INFO)
    assert not comfyui.register()
    assert reason in caplog.text
    assert not comfyui._replaced


def test_the_folder_for_custom_nodes():
    command = [sys.executable, "-m", "octofold.integrations.comfyui"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert printed == str(comfyui.custom_node_folder())
    name = "/ComfyUI/custom_nodes/octofold"  # as ComfyUI's load_custom_node() has it
    spec = importlib.util.spec_from_file_location(name, f"{printed}/__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.NODE_CLASS_MAPPINGS == nodes.NODE_CLASS_MAPPINGS
    assert set(module.NODE_DISPLAY_NAME_MAPPINGS) == set(module.NODE_CLASS_MAPPINGS)
    assert comfyui._replaced
    comfyui.unregister()


def test_marks_of_a_checkpoint_without_scales():
    e4m3, e5m2 = (torch.zeros(4, 8, dtype=dtype) for dtype in FORMATS)
    state = {
        "blocks.0.proj.weight": e4m3,
        "blocks.0.proj.bias": torch.zeros(4, dtype=torch.float8_e4m3fn),
        "blocks.0.conv.weight": torch.zeros(4, 8, 3, 3, dtype=torch.float8_e4m3fn),
        "blocks.1.proj.weight": e5m2,
        "out.weight": torch.zeros(4, 8, dtype=torch.bfloat16),
        "table": e4m3,
    }
    marked = nodes.marked(state)
    new = {name: marked[name] for name in marked if name not in state}
    assert set(new) == {
        f"blocks.{i}.proj.{end}" for i in (0, 1) for end in ("weight_scale", "comfy_quant")
    }
    assert all(marked[name] is state[name] for name in state)
    texts = [json.loads(new[f"blocks.{i}.proj.comfy_quant"].numpy().tobytes()) for i in (0, 1)]
    assert texts == [{"format": "float8_e4m3fn"}, {"format": "float8_e5m2"}]
    assert new["blocks.0.proj.weight_scale"] == 1


@pytest.mark.parametrize(
    "name", ["a.comfy_quant", "scaled_fp8", "a.scale_weight", "a.weight_scale"]
)
def test_a_checkpoint_with_scales_is_left_as_it_is(name):
    state = {"a.weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn), name: torch.ones(())}
    assert nodes.marked(state) == state


def of_comfyui(name):
    """The result of a function of comfyui_models.py in a process of its own."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([COMFYUI, *filter(None, sys.path)])}
    script = Path(__file__).with_name("comfyui_models.py")
    command = [sys.executable, script, "--cpu", "--supports-fp8-compute"]
    environ["OCTOFOLD_TEST"] = name
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


needs_comfyui = pytest.mark.skipif(not COMFYUI, reason="OCTOFOLD_COMFYUI names no ComfyUI")


@needs_comfyui
def test_comfyuis_layers_and_lora():
    found = of_comfyui("lora")
    assert found["plain"] < 5e-3
    assert found["layer by layer"] < 6e-3
    assert found["merged"] < 0.05  # ComfyUI rounds the sum to FP8
    assert found["products"] == [2, 2, 1]


@needs_comfyui
def test_comfyuis_loader_and_the_node():
    """A diffusion transformer in a file of FP8 without scales."""
    found = of_comfyui("load")
    assert found["by ComfyUI"]["products"] == 0
    assert found["by the node"]["products"] == found["linear layers"]
    assert found["by the node"]["error"] < 1e-5  # in float32, of the numbers that the codes are
