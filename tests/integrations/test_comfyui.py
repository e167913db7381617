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

import pytest

torch = pytest.importorskip("torch")
kitchen = pytest.importorskip("comfy_kitchen.tensor")

import octofold  # noqa: E402
from octofold.integrations import comfyui  # noqa: E402
from octofold.integrations.comfyui import products  # noqa: E402

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


def error(y, expected):
    assert torch.isfinite(y).all()
    return float((y.double() - expected).norm() / expected.norm())


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
        assert error(y, expected) < {torch.float32: 2e-6}.get(wide, 4e-3)
    assert len(calls) == 1


def test_the_bits_are_the_products(calls):
    weight = weight_of(64, 128)
    x = torch.randn(3, 128).bfloat16()
    scaled = products._codes(weight)
    with torch.inference_mode():
        y = torch.nn.functional.linear(x, weight)
    assert torch.equal(y, octofold.gemm_weight_only(x, scaled))


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
    assert error(y.detach(), x.detach().double() @ merged.T) < 8e-3
    assert error(x.grad, dy.double() @ merged) < 8e-3
    assert error(up.grad, dy.double().T @ (x.detach().double() @ down.detach().double().T)) < 8e-3
    assert len(calls) == 1


def test_a_weight_with_a_lora_merged_and_cast_again(calls):
    """What ComfyUI makes of an FP8 weight and a LoRA that is loaded as usual."""
    weight = weight_of(96, 128)
    low_rank = torch.randn(96, 4).bfloat16() @ torch.randn(4, 128).div(11).bfloat16()
    patched = weight.requantize_from_float(weight.dequantize() + low_rank, scale="recalculate")
    assert not torch.equal(patched._qdata, weight._qdata)
    x = torch.randn(9, 128).bfloat16()
    with torch.inference_mode():
        y = torch.nn.functional.linear(x, patched)
    assert error(y, x.double() @ exact(patched).T) < 4e-3
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


def test_switched_off_by_the_environment(monkeypatch, caplog):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", "vllm")
    caplog.set_level(logging.INFO)
    assert not comfyui.register()
    assert "switched off by OCTOFOLD_INTEGRATIONS=vllm" in caplog.text


def test_another_version_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.1")
    assert not comfyui.register()
    assert "comfy-kitchen>=0.2.40,<0.3, found comfy-kitchen 0.4.1" in caplog.text
    assert not comfyui.switch._replaced


def test_the_folder_for_custom_nodes():
    command = [sys.executable, "-m", "octofold.integrations.comfyui"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert printed == str(comfyui.custom_node_folder())
    name = "/ComfyUI/custom_nodes/octofold"  # as ComfyUI's load_custom_node() has it
    spec = importlib.util.spec_from_file_location(name, f"{printed}/__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.NODE_CLASS_MAPPINGS == {}
    assert comfyui.switch._replaced
    comfyui.unregister()


@pytest.mark.skipif(not COMFYUI, reason="OCTOFOLD_COMFYUI names no checkout of ComfyUI")
def test_comfyui_itself():
    """A model of ComfyUI's layers with an FP8 checkpoint: plain, with a LoRA that is merged as
    weights are loaded, and with one that is applied layer by layer."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([COMFYUI, *filter(None, sys.path)])}
    command = [sys.executable, __file__, "--cpu", "--supports-fp8-compute"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["plain"] < 5e-3
    assert found["layer by layer"] < 6e-3
    assert found["merged"] < 0.05  # ComfyUI rounds the sum to FP8
    assert found["calls"] == [2, 2, 1]


def run_comfyui():
    """What test_comfyui_itself() runs in a process of its own."""
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.model_patcher
    import comfy.ops
    import comfy.weight_adapter

    assert comfyui.register()
    layers = comfy.ops.mixed_precision_ops({}, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            options = {"device": "cpu", "dtype": torch.bfloat16}
            self.up = layers.Linear(256, 512, **options)
            self.down = layers.Linear(512, 128, bias=False, **options)

        def forward(self, x):
            return self.down(torch.nn.functional.silu(self.up(x)))

    class Model(torch.nn.Module):
        manual_cast_dtype = None

        def __init__(self):
            super().__init__()
            self.diffusion_model = Network()

    model = Model()
    exact_weights, state = {}, {}
    for name, shape in (("up", (512, 256)), ("down", (128, 512))):
        weight = torch.randn(shape, generator=generator) / shape[1] ** 0.5
        scale = weight.abs().max() / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        marker = json.dumps({"format": "float8_e4m3fn"}).encode()
        state |= {f"{name}.weight": codes, f"{name}.weight_scale": scale}
        state[f"{name}.comfy_quant"] = torch.tensor(list(marker), dtype=torch.uint8)
        exact_weights[name] = codes.double() * scale.double()
    state["up.bias"] = torch.randn(512, generator=generator).bfloat16()
    model.diffusion_model.load_state_dict(state)

    a, b = (
        torch.randn(512, 8, generator=generator) / 4,
        torch.randn(8, 256, generator=generator) / 8,
    )
    x = torch.randn(2, 100, 256, generator=generator).bfloat16()
    shapes = []
    real = products.product
    products.product = lambda x, *rest: shapes.append(1) or real(x, *rest)
    cpu = torch.device("cpu")
    calls = []

    def run(lora):
        up = exact_weights["up"] + lora * (a.double() @ b.double())
        hidden = torch.nn.functional.silu(x.double() @ up.T + state["up.bias"].double())
        shapes.clear()
        with torch.inference_mode():
            y = model.diffusion_model(x)
        calls.append(len(shapes))
        return error(y, hidden @ exact_weights["down"].T)

    found = {"plain": run(0)}
    patcher = comfy.model_patcher.ModelPatcher(model, cpu, cpu)
    adapter = comfy.weight_adapter.LoRAAdapter(set(), (a, b, 8.0, None, None, None))
    assert patcher.add_patches({"diffusion_model.up.weight": adapter}, 0.7)
    patcher.patch_model(cpu)
    found["merged"] = run(0.7)
    patcher.unpatch_model(cpu)
    patcher.patch_model(cpu, lowvram_model_memory=1)
    found["layer by layer"] = run(0.7)
    print(json.dumps(found | {"calls": calls}))


if __name__ == "__main__":
    run_comfyui()
