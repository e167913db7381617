"""Times on a GPU: of linear layers in each way, and of the whole model; peers take turns.

By CUDA graphs where the model can be captured, else by calls from Python between two events: what
is compared is measured the same way.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

Call: TypeAlias = Callable[[], Any]

WINDOW: Final = 2e-3
"""Seconds of one sample, where calls are shorter."""
ROUNDS: Final = 9


class NotCapturableError(Exception):
    """What ran cannot be a CUDA graph."""


@dataclass(frozen=True)
class Sampler:
    """Takes a sample: seconds of one call."""

    run: Call
    calls: int
    held: Any = None
    """What has to stay in memory."""

    def __call__(self) -> float:
        start, end = _event(), _event()
        self.run()  # so that the next one queues behind it, and does not wait for the host
        start.record()
        self.run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / self.calls


def medians(samplers: Sequence[Callable[[], float]], rounds: int = ROUNDS) -> list[float]:
    """Median seconds of each, taken in turns: A B C, then B C A …, after a round for warmth."""
    samples: list[list[float]] = [[] for _ in samplers]
    for round_ in range(rounds + 1):
        for turn in range(len(samplers)):
            index = (round_ + turn) % len(samplers)
            seconds = samplers[index]()
            if round_ > 0:
                samples[index].append(seconds)
    return [statistics.median(values) for values in samples]


def sampler(calls: Sequence[Call], graph: bool) -> Sampler:
    """For calls, of which one after the other is made, as often as fills the window."""
    for call in calls:
        call()  # compiles kernels, which a capture must not
    _synchronize()

    def once() -> None:
        for call in calls:
            call()

    first = Sampler(captured(once), 1) if graph else Sampler(once, 1)
    first()
    passes = max(1, min(1000, round(WINDOW / first())))
    if passes == 1:
        return Sampler(first.run, len(calls), first)

    def often() -> None:
        for _ in range(passes):
            once()

    run = captured(often) if graph else often
    return Sampler(run, passes * len(calls))


def captured(call: Call) -> Call:
    """The replay of a call that has run before, as a CUDA graph. Raises NotCapturableError."""
    stream = torch.cuda.current_stream()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()
    except Exception as error:
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own
        torch.cuda.synchronize()
        raise NotCapturableError(" ".join(str(error).split())) from error

    def replay() -> Any:
        graph.replay()
        return kept  # the graph writes to it

    return replay


def measurable(device: torch.device) -> bool:
    """Whether times are measured there: on the CPU backend they would say nothing."""
    return device.type == "cuda"


def _synchronize() -> None:
    torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
