"""Models of a real ComfyUI, for test_comfyui.py: what the environment variable OCTOFOLD_TEST names
is run, and printed as JSON."""

import json
import os
import tempfile
from pathlib import Path

import comfy.options
import torch
import transformers  # noqa: F401  (ComfyUI's modules import it in an order of their own)
from octofold.integrations import comfyui
from octofold.integrations.comfyui import nodes, products

comfy.options.enable_args_parsing()
import comfy.model_patcher  # noqa: E402
import comfy.ops  # noqa: E402
import comfy.weight_adapter  # noqa: E402

CPU = torch.device("cpu")
shapes = []


def count(real=products.product):
    """Notes each product in `shapes`."""
    products.product = lambda x, *rest: shapes.append(tuple(x.shape)) or real(x, *rest)


def error(y, expected):
    return float((y.double() - expected).norm() / expected.norm())


def lora():
    """A network of two layers with an FP8 checkpoint: as it is, with a LoRA that is merged as
    weights are loaded, and with one that is applied layer by layer. Errors against FP64."""
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
    patcher = comfy.model_patcher.ModelPatcher(model, CPU, CPU)
    adapter = comfy.weight_adapter.LoRAAdapter(set(), (a, b, 8.0, None, None, None))
    assert patcher.add_patches({"diffusion_model.up.weight": adapter}, 0.7)
    patcher.patch_model(CPU)
    found["merged"] = run(0.7)
    patcher.unpatch_model(CPU)
    patcher.patch_model(CPU, lowvram_model_memory=1)
    found["layer by layer"] = run(0.7)
    return found | {"products": calls}


def load():
    """A small diffusion transformer of SD3's kind, whose file has FP8 without scales."""
    import comfy.sd
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT
    from safetensors.torch import save_file

    torch.manual_seed(0)
    network = MMDiT(
        input_size=None,
        patch_size=2,
        in_channels=16,
        depth=2,
        adm_in_channels=64,
        context_embedder_config={
            "target": "torch.nn.Linear",
            "params": {"in_features": 96, "out_features": 128},
        },
        num_patches=1024,
        pos_embed_max_size=32,
        pos_embed_scaling_factor=None,
        dtype=torch.float32,
        device="cpu",
        operations=comfy.ops.disable_weight_init,
    )
    state = {}
    for name, value in network.state_dict().items():
        value = value.normal_(std=value.shape[-1] ** -0.5 if value.dim() > 1 else 0.1)
        state[name] = value.to(torch.float8_e4m3fn) if value.dim() == 2 else value.bfloat16()
    network.load_state_dict({name: value.float() for name, value in state.items()})
    inputs = torch.randn(1, 16, 16, 16), torch.tensor([500.0])
    others = {"context": torch.randn(1, 20, 96), "y": torch.randn(1, 64)}
    with torch.inference_mode():
        expected = network(*inputs, **others).double()
    linear = sum(isinstance(module, torch.nn.Linear) for module in network.modules())
    found = {"linear layers": linear}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.safetensors")
        save_file(state, path)
        for name, loader in (
            ("by ComfyUI", comfy.sd.load_diffusion_model),
            ("by the node", nodes.load_diffusion_model),
        ):
            patcher = loader(path)
            patcher.patch_model(CPU)
            shapes.clear()
            with torch.inference_mode():
                y = patcher.model.diffusion_model(*inputs, **others)
            found[name] = {"products": len(shapes), "error": error(y, expected)}
    return found


assert comfyui.register()
count()
print(json.dumps({"lora": lora, "load": load}[os.environ["OCTOFOLD_TEST"]]()))
