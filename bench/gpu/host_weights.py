"""Linear layers whose FP8 weights a host program holds, by the host and by our plug:

    python bench/gpu/host_weights.py host_weights.jsonl
    python bench/gpu/host_weights.py torchao.jsonl --sections torchao --tokens 1 16 8192
    python bench/gpu/host_weights.py tiny.jsonl --device cpu --rounds 2     to try the script

Sections, each where its host is installed:
    torchao  its own configs for FP8, compiled as it recommends, and ours, compiled and eager
    comfyui  comfy-kitchen's tensors as ComfyUI uses them: x cast by one scale, or, as on GPUs
             without FP8 units, the weight dequantized; and by our handler

Layers of a Llama (8B) and of a diffusion transformer (FLUX's sizes), x BF16. Results are first
compared with FP64 of the weight as it was. Weights go round sets larger than the L2 cache.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import octofold
import torch
from common.measure import Build, Implementation, measure
from common.operands import calls_of, relative_error, sets_of
from common.run import Run, new_parser, sizes
from torch import Tensor, nn

SECTIONS = ("torchao", "comfyui")
LAYERS = ((6144, 4096), (28672, 4096), (4096, 14336), (3072, 3072), (12288, 3072), (3072, 12288))
TOKENS = (1, 16, 64, 512, 4608, 8192)
BFLOAT16 = "BF16"
LIMIT = 0.06
"""The limit of the error of results, with x and the weight in FP8."""


def plain_sets(run: Run, out_features: int, in_features: int) -> list[nn.Linear]:
    def make() -> nn.Linear:
        layer = nn.Linear(in_features, out_features, False, run.device, torch.bfloat16)
        nn.init.normal_(layer.weight, std=in_features**-0.5)
        return layer.requires_grad_(False)

    return sets_of(make, out_features * in_features, run)


def implementation(
    call: Callable[..., Tensor], sets: Sequence[Sequence[object]], x: Tensor, plain: nn.Linear
) -> Implementation:
    """Makes an implementation of call(x, *one of the sets)."""
    calls = calls_of(call, [(x, *one) for one in sets])

    def error() -> float:
        with torch.inference_mode():
            return relative_error(calls[0](), x.double() @ plain.weight.double().T)

    return Implementation(calls, error, LIMIT)


def layer_of(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)


def of_torchao(x: Tensor, plain: list[nn.Linear]) -> Iterator[Build]:
    from octofold.integrations.torchao import OctofoldFp8WeightConfig
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Float8WeightOnlyConfig,
        PerRow,
        quantize_,
    )

    def make(config: object, compiled: bool) -> Implementation:
        layers = copy.deepcopy(plain)
        for layer in layers:
            quantize_(layer, config)
        call = torch.compile(layer_of, fullgraph=True) if compiled else layer_of
        return implementation(call, [(layer,) for layer in layers], x, plain[0])

    dynamic = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    yield Build("torchao, weights alone", partial(make, Float8WeightOnlyConfig(), True))
    yield Build("torchao, both per row", partial(make, dynamic, True))
    for compute in ("auto", "weight-only", "native"):
        config = OctofoldFp8WeightConfig(compute=compute)
        for how, compiled in (("eager", False), ("compiled", True)):
            name = f"octofold {compute}, {how}"
            yield Build(name, partial(make, config, compiled), True)


def of_comfyui(x: Tensor, plain: list[nn.Linear]) -> Iterator[Build]:
    from comfy_kitchen.tensor import QuantizedTensor
    from octofold.integrations import comfyui

    layout = "TensorCoreFP8Layout"
    weights = [QuantizedTensor.from_float(layer.weight, layout) for layer in plain]
    linear = nn.functional.linear

    def by_one_scale(x: Tensor, weight: Tensor) -> Tensor:
        return linear(QuantizedTensor.from_float(x, layout, scale=1.0), weight)

    def dequantized(x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight.dequantize())

    def ours(x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight)

    # Our handlers leave products with both operands in FP8, or none, to comfy-kitchen.
    assert comfyui.register()
    sets = [(weight,) for weight in weights]
    made = partial(implementation, sets=sets, x=x, plain=plain[0])
    yield Build("comfy-kitchen, FP8 by FP8", partial(made, by_one_scale))
    yield Build("comfy-kitchen, dequantized", partial(made, dequantized))
    yield Build("octofold", partial(made, ours), True)


def main() -> int:
    parser = new_parser(__doc__, rounds=9, seconds=540)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--layer", type=sizes, action="append", metavar="OUT,IN")
    parser.add_argument("--tokens", type=int, nargs="+")
    options = parser.parse_args()
    builds_of = {"torchao": of_torchao, "comfyui": of_comfyui}
    torch._dynamo.config.recompile_limit = 512  # one code for all layers
    with Run(options) as run, torch.inference_mode():
        layers = options.layer or (LAYERS if run.on_gpu else ((256, 384),))
        tokens = options.tokens or (TOKENS if run.on_gpu else (3, 130))
        for section in options.sections:
            for out_features, in_features in run.cases(layers):
                plain = plain_sets(run, out_features, in_features)
                for m in tokens:
                    x = torch.randn(m, in_features, device=run.device).bfloat16()
                    sets = [(layer,) for layer in plain]
                    builds = [Build(BFLOAT16, partial(implementation, layer_of, sets, x, plain[0]))]
                    try:
                        builds += builds_of[section](x, plain)
                    except (ImportError, octofold.Error) as error:
                        run.leave_out(section, False, error)
                        break
                    name = f"{m},{out_features},{in_features}"
                    measure(run, section, name, builds, BFLOAT16, tokens=m)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
