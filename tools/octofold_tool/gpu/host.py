"""octofold bench host: what a call costs the processor before the GPU has its work."""

import dataclasses
from collections.abc import Sequence

import octofold
import torch
from octofold._timing import Call, Method, timings

from ..products import GemmOptions
from ..report import print_table
from .peers import prepare_bfloat16, prepare_octofold, prepare_same_scales, prepare_tensor_scales

# Fewer calls than a stream's queue holds, so that none waits for the GPU.
METHOD = Method("host", rest=0.0, passes=200)
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


def measure(named: dict[str, Call], method: Method = METHOD) -> list[HostTime]:
    for call in named.values():
        call()  # loads kernels
    samplers = {name: method.sampler([call]) for name, call in named.items()}
    return [
        HostTime(name, time.microseconds, time.spread)
        for name, time in timings(samplers, OPTIONS.rounds).items()
    ]


def run() -> list[HostTime]:
    return measure(calls(torch.device("cuda")))


def show(times: Sequence[HostTime]) -> None:
    rows = [(time_.call, f"{time_.microseconds:.1f}", f"{time_.spread:.0%}") for time_ in times]
    print_table("Host time per call from Python", ("call", "µs", "±"), rows)
