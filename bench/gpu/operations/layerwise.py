"""Layerwise casting beside BF16 and beside Diffusers' hooks: times, memory, errors.

    python bench/gpu/run.py layerwise RESULTS.jsonl [--tokens 1 16 256 2048 8192]
        [--only blocks|layers|memory]

A block of a diffusion transformer (3072 features, FLUX's) and one of a Llama (8B's), and the layers
that they are made of, a convolution of a UNet besides. Where diffusers is not installed its hooks
are re-enacted: module.to(compute dtype) before a layer's forward, module.to(storage dtype) after.

Each output is compared with BF16's before it is timed. By name alone: in a CUDA graph, over weights
of more than 256 MB; "called": as Python calls it, with what that takes of the host.
"""

import gc
from functools import partial

import octofold
import torch
from common.measure import Build
from common.measure import measure as measure_builds
from common.models import LlamaBlock
from common.operands import sets_of
from common.run import print_table
from octofold._timing import GRAPH, WALL
from octofold_tool.gpu.measuring import Implementation, bytes_of, relative_error, run_in_threads
from torch import nn
from torch.nn import functional

ROUNDS, SECONDS = 7, 300
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TOKENS = (1, 16, 256, 2048, 8192)
MOST_COPIES = 12  # of one layer, against L2
# Limits of outputs' errors, relative to BF16's norm. Weights of unit variance over their inputs:
# FP8 with scales loses 2.6 % of a product, again as much if x is FP8; without scales up to 12 %.
LIMITS = {"BF16": 0, "Diffusers": 0.15, "Octofold": 0.08, "Octofold, not native": 0.06}


class DiffusionBlock(nn.Module):
    """Attention and an MLP, both modulated by a vector, as in DiT."""

    def __init__(self, size=3072, heads=24):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(size, 6 * size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)
        self.size = size

    def forward(self, x):
        vector = functional.silu(x[:, 0])
        parts = self.modulation(vector)[:, None].chunk(6, -1)
        h = functional.layer_norm(x, (self.size,)) * (1 + parts[0]) + parts[1]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(h).chunk(3, -1)
        )
        h = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + parts[2] * self.out(h)
        h = functional.layer_norm(x, (self.size,)) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.down(functional.gelu(self.up(h), approximate="tanh"))


class Hooks:
    """Casts a layer as Diffusers does: its parameters are converted before its forward and
    converted back after it. A graph that is captured reads the same codes again and again."""

    def __init__(self, layer):
        self.layer, self.forward = layer.to(dtype=FP8), layer.forward
        self.codes = None

    def __call__(self, *arguments):
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and self.codes is None:
            self.codes = [parameter.data for parameter in self.layer.parameters()]
        self.layer.to(dtype=BF16, non_blocking=False)
        output = self.forward(*arguments)
        self.layer.to(dtype=FP8, non_blocking=False)
        if capturing:
            for parameter, codes in zip(self.layer.parameters(), self.codes, strict=True):
                parameter.data = codes
        return output


def with_hooks(model):
    """Diffusers' own where it is installed."""
    try:
        from diffusers.hooks import apply_layerwise_casting
    except ImportError:
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.forward = Hooks(layer)
        return model
    apply_layerwise_casting(model, FP8, BF16, ("norm",))
    return model


def enabled(model, **options):
    has_norms = any("norm" in name for name, _ in model.named_modules())
    skipped = ("norm",) if has_norms else ()
    return octofold.models.enable_layerwise_casting(model, skip_modules_pattern=skipped, **options)


CASTINGS = {
    "BF16": lambda model: model,
    "Diffusers": with_hooks,
    "Octofold": enabled,
    "Octofold, not native": lambda model: enabled(model, native=False),
}
MODELS = {
    "DiT block": lambda: DiffusionBlock(),
    "Llama block": lambda: LlamaBlock(4096, 32, 8, 14336),
    "linear 3072 to 3072": lambda: nn.Linear(3072, 3072),
    "linear 3072 to 12288": lambda: nn.Linear(3072, 12288),
    "linear 12288 to 3072": lambda: nn.Linear(12288, 3072),
    "linear 4096 to 1024": lambda: nn.Linear(4096, 1024, bias=False),
    "linear 4096 to 14336": lambda: nn.Linear(4096, 14336, bias=False),
    "linear 320 to 1280": lambda: nn.Linear(320, 1280),
    "convolution 320, 3x3": lambda: nn.Conv2d(320, 320, 3, padding=1),
    "convolution 1280, 3x3": lambda: nn.Conv2d(1280, 1280, 3, padding=1),
    "linear 256 to 384": lambda: nn.Linear(256, 384),  # to try the script
}
BLOCKS = ("DiT block", "Llama block")
TINY = "linear 256 to 384"


def made(name, casting, device):
    torch.manual_seed(0)
    with device:
        model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return CASTINGS[casting](model.to(BF16).requires_grad_(False))


def inputs_of(model, name, tokens, device):
    if isinstance(model, nn.Conv2d):
        side = max(1, round(tokens**0.5))
        return torch.randn(1, model.in_channels, side, side, device=device, dtype=BF16)
    size = {"DiT block": 3072, "Llama block": 4096}.get(name) or model.in_features
    return torch.randn(1, tokens, size, device=device, dtype=BF16)


def weight_bytes(model):
    return bytes_of(*model.parameters(), *model.buffers())


def builds_of(name, tokens, copies, device):
    x = inputs_of(copies["BF16"][0], name, tokens, device)
    expected = copies["BF16"][0](x)
    for kind, method in (("", GRAPH), (", called", WALL)):
        for casting, models in copies.items():

            def make(casting=casting, models=models, method=method):
                def error():
                    return relative_error(models[0](x), expected)

                calls = [partial(model, x) for model in models]
                return Implementation(calls, error, LIMITS[casting], method=method)

            yield Build(f"{casting}{kind}", make, casting.startswith("Octofold"))


def beside(name):
    return "BF16, called" if name.endswith("called") else "BF16"


@torch.no_grad()
def measure_times(run, name):
    """Returns where we are more than 2 % slower than the hooks."""
    size = weight_bytes(made(name, "Octofold", run.device))
    count = len(sets_of(lambda: None, size, run, MOST_COPIES))
    copies = {way: [made(name, way, run.device) for _ in range(count)] for way in CASTINGS}
    behind = []
    for rows in run.options.tokens if run.on_gpu else [3]:
        x = inputs_of(copies["BF16"][0], name, rows, run.device)
        run_in_threads([partial(copies[way][0], x) for way in list(CASTINGS)[2:]])
        builds = builds_of(name, rows, copies, run.device)
        facts = {"model": name, "tokens": rows}
        found = measure_builds(run, "layerwise", f"{name}, {rows} tokens", builds, beside, **facts)
        for kind in ("", ", called"):
            ours, theirs = found.get(f"Octofold{kind}"), found.get(f"Diffusers{kind}")
            if ours and theirs and ours.microseconds > 1.02 * theirs.microseconds:
                ratio = theirs.microseconds / ours.microseconds
                behind.append(f"{name}, {rows} tokens{kind}: {ratio:.2f}")
    return behind


@torch.no_grad()
def measure_memory(run, name):
    """Measures memory of weights, and at the peak of forward of 16 tokens, activations included."""
    found = {}
    for casting in CASTINGS:
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated()
        model = made(name, casting, run.device)
        x = inputs_of(model, name, 16, run.device)
        model(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        weights = weight_bytes(model)
        model(x)
        found[casting] = (weights, torch.cuda.max_memory_allocated() - before)
        del model, x
        run.release()
    run.record("memory", model=name, bytes=found)
    base = found["BF16"]
    rows = []
    for casting, of_casting in found.items():
        shares = (f"{b / of_base:.3f}" for b, of_base in zip(of_casting, base, strict=True))
        rows.append([casting, *(f"{b / 1e6:.1f}" for b in of_casting), *shares])
    columns = ["", "weights, MB", "peak, MB", "of BF16's", "of BF16's"]
    print_table(f"Memory of {name}", columns, rows)


def add_options(parser):
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--only", choices=("memory", "blocks", "layers"))


def cases(run):
    """The function that measures, and a model's name."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    only = run.options.only
    if not run.on_gpu:
        return [(measure_times, TINY)]
    memory = [(measure_memory, name) for name in BLOCKS if only in (None, "memory")]
    kinds = {name: "blocks" if name in BLOCKS else "layers" for name in MODELS if name != TINY}
    return memory + [(measure_times, name) for name, kind in kinds.items() if only in (None, kind)]


def measure(run, case):
    function, name = case
    return function(run, name)


def summary(found):
    behind = [text for texts in found for text in texts or ()]
    print("slower than the hooks by more than 2 %:", "; ".join(behind) or "nowhere")
