"""Samples of the time of calls, as octofold_tool.gpu.timing takes them: CUDA graphs where calls are
short; between events, behind a call that keeps the GPU busy, where a call is longer than a sample,
so that the host is ahead; the wall clock on a CPU, to try the script."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from octofold_tool.gpu.timing import (
    REST,
    WINDOW,
    Call,
    Sampler,
    graph_sampler,
    new_event,
    take_turns,
)
from octofold_tool.measure import spread


@dataclass(frozen=True)
class Timing:
    microseconds: float  # median
    spread: float  # half the quartile range over the median
    method: str  # "graph", "events" or "wall clock"


@dataclass(frozen=True)
class EventSampler:
    calls: Sequence[Call]

    def __call__(self) -> float:
        time.sleep(REST)
        start, end = new_event(), new_event()
        self.calls[-1]()
        start.record()
        for call in self.calls:
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / len(self.calls)


@dataclass(frozen=True)
class WallClockSampler:
    calls: Sequence[Call]

    def __call__(self) -> float:
        start = time.perf_counter()
        for call in self.calls:
            call()
        return (time.perf_counter() - start) / len(self.calls)


def sampler_of(calls: Sequence[Call], device: torch.device) -> tuple[Sampler, str]:
    """For calls, one of each set of operands. Runs them first."""
    for _ in range(2):
        for call in calls:
            call()
    if device.type != "cuda":
        return WallClockSampler(calls), "wall clock"
    events = EventSampler(calls)
    if events() >= WINDOW:
        return events, "events"
    try:
        return graph_sampler(calls), "graph"
    except RuntimeError as error:  # some peers cannot be captured
        torch.cuda.synchronize()
        print(f"  no CUDA graph: {str(error).splitlines()[0]}", flush=True)
        return events, "events"


def timings(samplers: Sequence[tuple[Sampler, str]], rounds: int) -> list[Timing]:
    """Of samplers that take turns."""
    samples = take_turns([sampler for sampler, _ in samplers], rounds)
    return [
        Timing(statistics.median(seconds) * 1e6, spread(seconds), method)
        for seconds, (_, method) in zip(samples, samplers, strict=True)
    ]
