"""Layerwise casting beside BF16 and beside Diffusers' hooks: times, memory, errors.

    python bench/gpu/layerwise.py RESULTS.jsonl [--rounds 7] [--seconds 85]
        [--tokens 1 16 256 2048 8192] [--only blocks|layers|memory]

A block of a diffusion transformer (3072 features, FLUX's) and one of a Llama (8B's), and the layers
that they are made of, a convolution of a UNet besides. Where diffusers is not installed its hooks
are re-enacted: module.to(compute dtype) before a layer's forward, module.to(storage dtype) after.

Each way's output is compared with BF16's before it is timed. "GPU": CUDA graphs over weights of
more than 256 MB; "called": as Python calls them, with what that takes of the host. Peers take turns
in each round; medians, with half the quartile range. A line of JSON for each measurement.
"""

import argparse
import gc
import json
import signal
import statistics
import subprocess
import sys
import time

import octofold
import torch
from octofold_tool.gpu.timing import MIN_BYTES, graph_sampler, take_turns
from torch import nn
from torch.nn import functional

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TOKENS = (1, 16, 256, 2048, 8192)
MOST_COPIES = 12  # of one layer, against L2
# Of outputs, relative to BF16's norm. Weights of unit variance over their inputs: FP8 with scales
# loses 2.6 % of a product, as much again where x is FP8 too; without scales up to 12 %.
LIMITS = {"BF16": 0, "Diffusers": 0.15, "Octofold": 0.08, "Octofold, not native": 0.06}
PAUSE = 0.01
PROCESSES = 8


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


class LlamaBlock(nn.Module):
    """Grouped causal attention and a gated MLP, each after an RMS norm; without positions."""

    def __init__(self, size=4096, heads=32, kv_heads=8, hidden=14336):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, size
        kv_size = size // heads * kv_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(size, out, bias=False) for out in (size, kv_size, kv_size, size)
        )
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        h = functional.rms_norm(x, (self.size,))
        q = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            one(h).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
            for one in (self.key, self.value)
        )
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = functional.rms_norm(x, (self.size,))
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Hooks:
    """What Diffusers' casting does to a layer: its parameters are converted before its forward and
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
        apply_layerwise_casting = None
    if apply_layerwise_casting is not None:
        apply_layerwise_casting(model, FP8, BF16, ("norm",))
        return model
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.forward = Hooks(layer)
    return model


def enabled(model, **options):
    return octofold.models.enable_layerwise_casting(model, skip_modules_pattern=(), **options)


WAYS = {
    "BF16": lambda model: model,
    "Diffusers": with_hooks,
    "Octofold": enabled,
    "Octofold, not native": lambda model: enabled(model, native=False),
}
MODELS = {
    "DiT block": lambda: DiffusionBlock(),
    "Llama block": lambda: LlamaBlock(),
    "linear 3072 to 3072": lambda: nn.Linear(3072, 3072),
    "linear 3072 to 12288": lambda: nn.Linear(3072, 12288),
    "linear 12288 to 3072": lambda: nn.Linear(12288, 3072),
    "linear 4096 to 1024": lambda: nn.Linear(4096, 1024, bias=False),
    "linear 4096 to 14336": lambda: nn.Linear(4096, 14336, bias=False),
    "linear 320 to 1280": lambda: nn.Linear(320, 1280),
    "convolution 320, 3x3": lambda: nn.Conv2d(320, 320, 3, padding=1),
    "convolution 1280, 3x3": lambda: nn.Conv2d(1280, 1280, 3, padding=1),
}


def made(name, way):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return WAYS[way](model.to(BF16).requires_grad_(False))


def inputs_of(model, tokens):
    if isinstance(model, nn.Conv2d):
        side = max(1, round(tokens**0.5))
        return torch.randn(1, model.in_channels, side, side, device="cuda", dtype=BF16)
    size = model.in_features if isinstance(model, nn.Linear) else model.size
    return torch.randn(1, tokens, size, device="cuda", dtype=BF16)


def bytes_of(model):
    return sum(one.numel() * one.itemsize for one in (*model.parameters(), *model.buffers()))


def called_sampler(calls):
    """As Python calls them: the time until the last is done."""

    def seconds(passes):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(passes):
            for call in calls:
                call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / passes / len(calls)

    passes = max(1, round(4e-3 / (seconds(1) * len(calls))))

    def sample():
        time.sleep(PAUSE)
        return seconds(passes)

    return sample


def summary(samples):
    low, middle, high = statistics.quantiles(samples, n=4)
    return middle * 1e6, (high - low) / 2 / middle


def times_of(name, tokens, rounds, copies):
    """By way: (median, spread) of the GPU's time and of a call's, and the error."""
    calls, errors, expected = {}, {}, None
    torch.manual_seed(1)
    x = inputs_of(copies["BF16"][0], tokens)
    for way, models in copies.items():
        y = models[0](x).float()
        expected = y if way == "BF16" else expected
        errors[way] = float((y - expected).norm() / expected.norm())
        if not errors[way] <= LIMITS[way]:  # NaN is wrong too
            print(f"{name}, {tokens} tokens, {way}: error {errors[way]:.1e}", flush=True)
            continue
        calls[way] = [lambda model=model: model(x) for model in models]
        for call in calls[way]:
            call()
    results = {}
    for kind, sampler in (("GPU", graph_sampler), ("called", called_sampler)):
        samples = take_turns([sampler(one) for one in calls.values()], rounds)
        for way, sample in zip(calls, samples, strict=True):
            results.setdefault(way, {"error": errors[way]})[kind] = summary(sample)
    return results


def measure_times(name, options, results, deadline, behind):
    models = {way: [made(name, way)] for way in WAYS}
    count = min(MOST_COPIES, max(1, -(-MIN_BYTES // bytes_of(models["Octofold"][0]))))
    for way, of_way in models.items():
        of_way += [made(name, way) for _ in range(count - 1)]
    for tokens in options.tokens:
        if time.monotonic() > deadline:
            print(f"no time for {name} with {tokens} tokens and what follows", flush=True)
            return False
        line = times_of(name, tokens, options.rounds, models)
        print(json.dumps({"model": name, "tokens": tokens, "ways": line}), file=results, flush=True)
        print_times(name, tokens, line)
        behind += [
            f"{name}, {tokens} tokens, {kind}: {line['Diffusers'][kind][0] / one[kind][0]:.2f}"
            for way, one in line.items()
            if way == "Octofold" and "Diffusers" in line
            for kind in ("GPU", "called")
            if one[kind][0] > 1.02 * line["Diffusers"][kind][0]
        ]
    return True


def print_times(name, tokens, line):
    """One line: what BF16 takes, and the others' speed by its."""
    base = line["BF16"]
    texts = [
        f"{way} {base['GPU'][0] / one['GPU'][0]:4.2f} · {base['called'][0] / one['called'][0]:4.2f}"
        f" (error {one['error']:.3f})"
        for way, one in line.items()
        if way != "BF16"
    ]
    spread = max(one[kind][1] for one in line.values() for kind in ("GPU", "called"))
    print(
        f"{name:<22} {tokens:>5} tokens: BF16 {base['GPU'][0]:7.1f} µs · called "
        f"{base['called'][0]:7.1f}; of its speed {', '.join(texts)}; spread up to {spread:.1%}",
        flush=True,
    )


def measure_memory(name, results):
    """Of weights, and at the peak of a forward of 16 tokens, activations included."""
    line = {}
    for way in WAYS:
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated()
        model = made(name, way)
        x = inputs_of(model, 16)
        model(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        weights = bytes_of(model)
        model(x)
        line[way] = (weights, torch.cuda.max_memory_allocated() - before)
        del model, x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    print(json.dumps({"memory": name, "ways": line}), file=results, flush=True)
    base = line["BF16"]
    for way, (weights, peak) in line.items():
        print(
            f"{name:<22} {way:<21} weights {weights / 1e6:7.1f} MB ({weights / base[0]:.3f} of "
            f"BF16's), at peak {peak / 1e6:7.1f} MB ({peak / base[1]:.3f})",
            flush=True,
        )


def compile_all(options):
    """Into the disk cache, by several processes."""
    command = [sys.executable, __file__, options.results, "--tokens", *map(str, options.tokens)]
    shares = [
        subprocess.Popen([*command, "--share", str(share)], stdout=subprocess.DEVNULL)
        for share in range(PROCESSES)
    ]
    if any(share.wait() for share in shares):
        print("a process that compiles has failed", flush=True)


def compile_share(options):
    work = [(name, tokens) for name in MODELS for tokens in (16, *options.tokens)]
    for name, tokens in work[options.share :: PROCESSES]:
        for way in ("Octofold", "Octofold, not native"):
            model = made(name, way)
            model(inputs_of(model, tokens))
    torch.cuda.synchronize()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)  # of what is to be compiled
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--only", choices=("memory", "blocks", "layers"))
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    signal.alarm(round(options.seconds) + 60)  # a kernel that hangs ends the process
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if options.share is not None:
        compile_share(options)
        return
    compile_all(options)
    blocks = [name for name in MODELS if "block" in name]
    behind = []
    with open(options.results, "a") as results:
        if options.only in (None, "memory"):
            for name in blocks:
                measure_memory(name, results)
        for name in MODELS:
            kind = "blocks" if name in blocks else "layers"
            if options.only in (None, kind) and not measure_times(
                name, options, results, deadline, behind
            ):
                break
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    signal.alarm(0)
    print("slower than the hooks by more than 2 %:", "; ".join(behind) or "nowhere")


if __name__ == "__main__":
    main()
