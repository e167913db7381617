"""octofold bench host: what a call costs the processor before the GPU has its work."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import octofold
import torch

from ..measure import spread
from ..products import GemmOptions
from ..report import print_table
from .peers import prepare_bfloat16, prepare_octofold, prepare_same_scales, prepare_tensor_scales
from .timing import Call, take_turns

# Fewer than a stream's queue holds, so that no call waits for the GPU.
CALLS = 200
# Done before the host has queued the next one.
SHAPE = (64, 128, 512)
OPTIONS = GemmOptions(("e4m3", "e4m3"), ("1x128", "128x128"), "bfloat16", rounds=21)


@dataclasses.dataclass(frozen=True)
class HostTime:
    call: str
    microseconds: float
    spread: float  # half the quartile range over the median


def calls(device: torch.device) -> dict[str, Call]:
    """What is called, by its name."""
    m, n, k = SHAPE
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    return {
        "octofold.gemm(out=)": prepare_octofold(x, w, OPTIONS).run,
        "octofold.quantize": lambda: octofold.quantize(x),
        "torch.mm(out=), BF16": prepare_bfloat16(x, w, OPTIONS).run,
        "torch._scaled_mm(out=), same scales": prepare_same_scales(x, w, OPTIONS).run,
        "torch._scaled_mm(out=), tensor": prepare_tensor_scales(x, w, OPTIONS).run,
    }


def host_seconds(call: Call, synchronize: Callable[[], Any]) -> float:
    """Of one call of CALLS in a row, without the wait for the GPU."""
    synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = (time.perf_counter() - start) / CALLS
    synchronize()
    return seconds


def measure(named: dict[str, Call], synchronize: Callable[[], Any]) -> list[HostTime]:
    for call in named.values():
        call()  # loads kernels
    samplers = [lambda call=call: host_seconds(call, synchronize) for call in named.values()]
    samples = take_turns(samplers, OPTIONS.rounds)
    return [
        HostTime(name, statistics.median(seconds) * 1e6, spread(seconds))
        for name, seconds in zip(named, samples, strict=True)
    ]


def run() -> list[HostTime]:
    return measure(calls(torch.device("cuda")), torch.cuda.synchronize)


def show(times: Sequence[HostTime]) -> None:
    rows = [(time_.call, f"{time_.microseconds:.1f}", f"{time_.spread:.0%}") for time_ in times]
    print_table("Host time per call from Python", ("call", "µs", "±"), rows)
