"""What an eager layer costs the host, beside torch.nn.Linear."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import octofold.nn
import torch
from octofold_tool.gpu.timing import Sampler, take_turns
from octofold_tool.measure import spread
from torch import nn

from .layers import on_gpu
from .results import Results

CALLS = 50  # fewer kernels in all than a stream's queue holds, so that no call waits for the GPU
WARM_UP = 5
SHAPE = (64, 128, 512)  # tokens, out, in: done before the host has queued the next one


@dataclass(frozen=True)
class HostSampler:
    call: Callable[[], object]
    synchronize: Callable[[], None]

    def __call__(self) -> float:
        self.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            self.call()
        seconds = (time.perf_counter() - start) / CALLS
        self.synchronize()
        return seconds


def calls_of(layer: nn.Linear, device: torch.device) -> dict[str, Callable]:
    tokens, out_features, in_features = SHAPE
    x = torch.randn(tokens, in_features, device=device).bfloat16().requires_grad_()
    dy = torch.randn(tokens, out_features, device=device).bfloat16()
    weight = layer.weight

    def forward() -> object:
        return layer(x)

    def both() -> object:
        return torch.autograd.grad(layer(x), (x, weight), dy)

    return {"forward": forward, "forward + backward": both}


def measure_host(recipes: Sequence[str], device: torch.device, results: Results) -> None:
    results.check_time()
    _, out_features, in_features = SHAPE
    plain = nn.Linear(in_features, out_features, False, device, torch.bfloat16)
    layers = {"torch.nn.Linear": plain}
    for recipe in recipes:
        layer = octofold.nn.Linear.from_linear(plain, recipe, force_fp8=True)
        layers[f"octofold {recipe}"] = layer
    samplers: dict[tuple[str, str], Sampler] = {}
    synchronize = torch.cuda.synchronize if on_gpu(device) else lambda: None
    for name, layer in layers.items():
        for passes, call in calls_of(layer, device).items():
            for _ in range(WARM_UP):
                call()
            samplers[name, passes] = HostSampler(call, synchronize)
    samples = take_turns(list(samplers.values()), results.rounds)
    cells: dict[str, list[str]] = {}
    for (name, passes), seconds in zip(samplers, samples, strict=True):
        microseconds = statistics.median(seconds) * 1e6
        half_range = spread(seconds)
        results.add("host", layer=name, passes=passes, microseconds=microseconds, spread=half_range)
        cells.setdefault(name, [name]).append(f"{microseconds:.1f} ±{half_range:.0%}")
    columns = ["µs of host time, eager", "forward", "forward + backward"]
    results.table("Host", columns, list(cells.values()))
