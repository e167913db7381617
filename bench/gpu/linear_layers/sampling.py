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


def samplers_of(peers: Sequence[Sequence[Call]], device: torch.device) -> tuple[list[Sampler], str]:
    """One for each peer's calls, one call of each set of operands, all of the same method. Runs
    them first."""
    for calls in peers:
        for call in (*calls, *calls):
            call()
    if device.type != "cuda":
        return [WallClockSampler(calls) for calls in peers], "wall clock"
    by_events: list[Sampler] = [EventSampler(calls) for calls in peers]
    if max(sampler() for sampler in by_events) >= WINDOW:
        return by_events, "events"
    try:
        return [graph_sampler(calls) for calls in peers], "graph"
    except RuntimeError as error:  # some peers cannot be captured
        torch.cuda.synchronize()
        print(f"  no CUDA graph: {str(error).splitlines()[0]}", flush=True)
        return by_events, "events"


def timings(peers: Sequence[Sequence[Call]], device: torch.device, rounds: int) -> list[Timing]:
    """Of peers that take turns."""
    samplers, method = samplers_of(peers, device)
    return [
        Timing(statistics.median(seconds) * 1e6, spread(seconds), method)
        for seconds in take_turns(samplers, rounds)
    ]
