"""A FLUX of fewer blocks in Diffusers: times and errors of its ways to have weights in FP8.

    python bench/gpu/run.py diffusers_dit RESULTS.jsonl [--blocks 2 4] [--tokens 4096 512]
        [--compile]

FluxTransformer2DModel with the widths of FLUX.1 and random weights, as a folder that each way loads
by from_pretrained(): BF16, Diffusers' enable_layerwise_casting(), torchao's dynamic quantization
with a scale for each row (where torchao is there), and Octofold's quantizer with each kind of
scales. All are cast in the same layers. Each output is compared with BF16's before it is timed.
With --compile each is compiled too, by compile_repeated_blocks(), and compared with BF16 compiled.
Needs diffusers and accelerate. On a CPU sizes are tiny.
"""

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

import octofold
import torch
from common.measure import Build
from common.measure import measure as measure_builds
from octofold_tool.gpu.measuring import Implementation, relative_error

ROUNDS, SECONDS = 9, 540
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# The sizes of FLUX.1: width 3072, heads of 128, text of T5-XXL, vectors of CLIP.
FLUX = {
    "in_channels": 64,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "axes_dims_rope": (16, 56, 56),
}
TINY = {
    "in_channels": 8,
    "attention_head_dim": 64,
    "num_attention_heads": 2,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 64,
    "axes_dims_rope": (16, 24, 24),
}
# Limits of outputs' errors, relative to BF16's norm: a rounding of weights to FP8 loses 2.6 % of a
# product, as much again where x is FP8 too; without scales more.
LIMITS = {"BF16": 0, "Diffusers": 0.15, "torchao": 0.12, "Octofold": 0.12}
COMPILED = ", compiled"


def from_folder(folder, run, **options):
    from diffusers import FluxTransformer2DModel

    where = {"device_map": {"": run.device}} if run.on_gpu else {}
    return FluxTransformer2DModel.from_pretrained(folder, torch_dtype=BF16, **where, **options)


def of_octofold(folder, run, **options):
    from octofold.integrations.diffusers import OctofoldConfig

    return from_folder(folder, run, quantization_config=OctofoldConfig(**options))


def of_diffusers(folder, run):
    model = from_folder(folder, run)
    model.enable_layerwise_casting(storage_dtype=FP8, compute_dtype=BF16)
    return model


def of_octofolds_casting(folder, run):
    return octofold.models.enable_layerwise_casting(from_folder(folder, run))


def of_torchao(folder, run):
    """The layers that casting takes, one after another."""
    from octofold.integrations.diffusers import OctofoldConfig
    from octofold.integrations.diffusers.quantizer import options_of
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        PerRow,
        quantize_,
    )

    model = from_folder(folder, run)
    keeps = options_of(OctofoldConfig(), model).keeps
    quantize_(
        model,
        Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
        filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and not keeps(name),
    )
    return model


WAYS = {
    "BF16": from_folder,
    "Diffusers' casting": of_diffusers,
    "torchao rows": of_torchao,
    "Octofold 128x128": partial(of_octofold, format="128x128", compute="native"),
    "Octofold channel": partial(of_octofold, format="channel", compute="native"),
    "Octofold tensor": partial(of_octofold, format="tensor", compute="native"),
    "Octofold's casting": of_octofolds_casting,
    "Octofold weight-only": partial(of_octofold, format="channel", compute="weight-only"),
}


def write_model(folder, run, blocks):
    """Weights of unit variance over their inputs."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    sizes = FLUX if run.on_gpu else TINY
    with run.device:
        model = FluxTransformer2DModel(num_layers=blocks[0], num_single_layers=blocks[1], **sizes)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.to(BF16).save_pretrained(folder)
    return sizes


def inputs_of(sizes, tokens, run):
    torch.manual_seed(1)
    of_image, of_text = tokens
    make = partial(torch.randn, device=run.device, dtype=BF16)
    return {
        "hidden_states": make(1, of_image, sizes["in_channels"]),
        "encoder_hidden_states": make(1, of_text, sizes["joint_attention_dim"]),
        "pooled_projections": make(1, sizes["pooled_projection_dim"]),
        "timestep": torch.full((1,), 0.5, device=run.device, dtype=BF16),
        "img_ids": torch.zeros(of_image, 3, device=run.device),
        "txt_ids": torch.zeros(of_text, 3, device=run.device),
        "return_dict": False,
    }


def builds_of(folder, inputs, run, ways, compiled):
    expected = from_folder(folder, run)(**inputs)[0]
    for way in ways:

        def make(way=way):
            model = WAYS[way](folder, run)
            if compiled:
                model.compile_repeated_blocks()

            def error():
                return relative_error(model(**inputs)[0], expected)

            limit = next(limit for name, limit in LIMITS.items() if way.startswith(name))
            limit = 0.02 if compiled and not limit else limit
            return Implementation([partial(model, **inputs)], error, limit)

        yield Build(f"{way}{COMPILED if compiled else ''}", make, way.startswith("Octofold"))


def add_options(parser):
    add = parser.add_argument
    add("--blocks", type=int, nargs=2, default=(2, 4), help="double, single")
    add("--tokens", type=int, nargs=2, default=(4096, 512), help="image, text")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add("--compile", action="store_true")


def cases(run):
    """The folder of the model, its inputs, the ways to load it, and whether they are compiled."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    options, has_torchao = run.options, importlib.util.find_spec("torchao") is not None
    ways = [way for way in options.ways if way != "torchao rows" or has_torchao]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = write_model(folder, run, options.blocks if run.on_gpu else (1, 2))
        run.release()
        inputs = inputs_of(sizes, options.tokens if run.on_gpu else (16, 8), run)
        yield folder, inputs, ways, False
        if options.compile:
            yield folder, inputs, [way for way in ways if way != "Octofold's casting"], True


@torch.no_grad()
def measure(run, case):
    folder, inputs, ways, compiled = case
    tokens = inputs["hidden_states"].shape[1] + inputs["encoder_hidden_states"].shape[1]
    builds = builds_of(folder, inputs, run, ways, compiled)
    title = f"{tokens} tokens{COMPILED if compiled else ''}"
    facts = {"blocks": run.options.blocks, "tokens": tokens}
    measure_builds(run, "diffusers", title, builds, **facts)
