"""Times of work on a GPU: CUDA graphs that are replayed, one peer after another.

A graph holds about WINDOW of calls, which go round sets of operands that together are larger than
any L2 cache: the time of one hot set would be the cache's. Peers take turns within a round, so that
a clock that moves with temperature moves for all of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

WINDOW = 2e-3  # seconds between the two events of a sample
REST = 10e-3  # seconds before each sample, for the chip to cool down to where it was
MIN_BYTES = 256_000_000  # of all sets together; an H200's L2 has 60 MB
MAX_SETS = 512  # of tiny operands, which take longer to make than to multiply

Call: TypeAlias = Callable[[], Any]

Sampler: TypeAlias = Callable[[], float]
"""Takes a sample: mean seconds of one call."""

NewSampler: TypeAlias = Callable[[Sequence[Call]], Sampler]
"""For calls that are to be timed in turn."""


def captured(calls: Sequence[Call], passes: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(passes):
            for call in calls:
                call()
    return graph


def replay_seconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay, right after one that is not timed."""
    start, end = new_event(), new_event()
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class GraphSampler:
    """Replays a graph of `count` calls."""

    graph: torch.cuda.CUDAGraph
    count: int

    def __call__(self) -> float:
        time.sleep(REST)
        return replay_seconds(self.graph) / self.count


def graph_sampler(calls: Sequence[Call]) -> Sampler:
    """For calls, one of each set of operands, that have run before: a capture loads no kernels."""
    torch.cuda.synchronize()
    passes = max(1, round(WINDOW / replay_seconds(captured(calls, 1))))
    return GraphSampler(captured(calls, passes), passes * len(calls))


def take_turns(samplers: Sequence[Sampler], rounds: int) -> list[list[float]]:
    """`rounds` samples of each: A B C, then B C A, then C A B …"""
    samples: list[list[float]] = [[] for _ in samplers]
    for round_ in range(rounds):
        for turn in range(len(samplers)):
            index = (round_ + turn) % len(samplers)
            samples[index].append(samplers[index]())
    return samples
