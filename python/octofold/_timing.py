"""The times of calls: how the advisor, the `octofold` command and the scripts of bench/ take them.

A Method says how a sample is taken; take_turns() interleaves the samples of what is compared. On a
GPU the calls of a sampler go round sets of operands that together have COLD_BYTES or more where the
time of cold operands is wanted: one set would be read from the L2 cache. A single call measures hot
operands.

This module imports nothing of Octofold, so that a script can load the file beside another build,
and torch only where a GPU is timed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

COLD_BYTES: Final = 256_000_000
"""The least size of all sets of operands together; an H200's L2 cache has 60 MB."""
MAX_SETS: Final = 512
"""The most sets, which tiny operands reach: they take longer to make than to multiply."""
MOST_PASSES: Final = 1000
SCREENING_ROUNDS: Final = 3
FINALISTS: Final = 6

Call: TypeAlias = Callable[[], Any]
Sampler: TypeAlias = Callable[[], float]
"""Takes a sample: mean seconds of one call."""
Key = TypeVar("Key", bound=Hashable)


class NotCapturableError(Exception):
    """The calls cannot become a CUDA graph."""


@dataclass(frozen=True)
class Method:
    """How a sample is taken, by its kind:

    graph   a CUDA graph of the calls is replayed between two events, behind a replay that is not
            timed, so that the host is ahead of the GPU and the clock is up
    events  the calls are made from Python between two events, behind as many that are not timed
    wall    the wall clock runs from the first call until the GPU is done with the last
    host    the wall clock runs while the host makes the calls, and the GPU is not waited for; the
            calls must be fewer than a stream's queue holds
    """

    kind: Literal["graph", "events", "wall", "host"]
    window: float = 2e-3
    """Seconds that the calls of a sample take together at least."""
    rest: float = 10e-3
    """Seconds of rest before each sample, in which the chip cools down to where it was."""
    passes: int | None = None
    """Passes over the calls in a sample. None: as many as fill the window."""
    sustained: float = 0.0
    """Seconds for which the graph is replayed back to back; the sample is of the last third. A chip
    whose power is the limit is at its lasting clock then. 0: of one replay."""

    def sampler(self, calls: Sequence[Call]) -> Sampler:
        """A sampler of calls, of which one follows the other. They must have run before, since
        kernels are compiled and loaded then. Raises NotCapturableError for the kind "graph"."""
        if self.passes is not None:
            return self._sampler(calls, self.passes)
        seconds = self._sampler(calls, 1).seconds()
        passes = max(1, min(MOST_PASSES, round(self.window / seconds)))
        return self._sampler(calls, passes)

    def _sampler(self, calls: Sequence[Call], passes: int) -> "_Sampler":
        def run() -> None:
            for _ in range(passes):
                for call in calls:
                    call()

        timed = captured(run) if self.kind == "graph" else run
        return _Sampler(self, timed, passes * len(calls), calls)


@dataclass(frozen=True)
class _Sampler:
    method: Method
    run: Call
    count: int
    held: Sequence[Call]
    """Keep in memory what a graph reads."""

    def __call__(self) -> float:
        if self.method.rest:
            time.sleep(self.method.rest)
        return self.seconds() / self.count

    def seconds(self) -> float:
        """Seconds of all calls together."""
        if self.method.sustained:
            return sustained_seconds(self.run, self.method.sustained)
        if self.method.kind in ("graph", "events"):
            return event_seconds(self.run)
        synchronize()
        start = time.perf_counter()
        self.run()
        if self.method.kind == "wall":
            synchronize()
        seconds = time.perf_counter() - start
        synchronize()
        return seconds


GRAPH: Final = Method("graph")
SUSTAINED: Final = Method("graph", window=10e-3, rest=0.5, sustained=0.6)
"""An H200's clock takes some 0.3 s to come down under products, and its rest to come back."""
EVENTS: Final = Method("events")
WALL: Final = Method("wall", window=5e-3)
CPU: Final = Method("wall", rest=0.0, passes=1)
"""For work that no GPU has part in."""


def event_seconds(run: Call) -> float:
    """Seconds of one run on the GPU, right after one that is not timed."""
    start, end = new_event(), new_event()
    run()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def sustained_seconds(run: Call, seconds: float) -> float:
    """Seconds of one run on the GPU, in the last third of so many back to back."""
    runs = max(3, round(seconds / event_seconds(run)))
    timed = runs // 3
    start, end = new_event(), new_event()
    for _ in range(runs - timed):
        run()
    start.record()
    for _ in range(timed):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / timed


def captured(run: Call, error_mode: str = "global") -> Call:
    """The replay of a CUDA graph of what has run before; it returns what the run returned, which
    the replay writes anew. Raises NotCapturableError.

    error_mode: torch's capture_error_mode; "thread_local" where other threads ask the GPU for
        something meanwhile, as NCCL's watchdog does.
    """
    import torch

    synchronize()
    stream = torch.cuda.current_stream()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=error_mode):
            kept = run()
    except Exception as error:
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own
        synchronize()
        raise NotCapturableError(" ".join(str(error).split())) from error

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def take_turns(
    samplers: Sequence[Sampler],
    rounds: int,
    *,
    warm_up: int = 0,
    least: int = 1,
    budget: float = float("inf"),
    between: float = 0.0,
) -> list[list[float]]:
    """Samples of each sampler, which take turns within a round, so that a clock that moves with
    temperature moves for all of them: A B C, then B C A, then C A B …

    warm_up: rounds before these, whose samples are dropped.
    budget: seconds, after which no round begins if `least` rounds are done.
    between: seconds of rest wherever the turn passes to another sampler.
    """
    samples: list[list[float]] = [[] for _ in samplers]
    previous, begin = None, time.perf_counter()
    for round_ in range(warm_up + rounds):
        if round_ >= warm_up + least and time.perf_counter() - begin > budget:
            break
        for turn in range(len(samplers)):
            index = (round_ + turn) % len(samplers)
            if previous not in (None, index):
                time.sleep(between)
            previous = index
            seconds = samplers[index]()
            if round_ >= warm_up:
                samples[index].append(seconds)
    return samples


def medians(samplers: Sequence[Sampler], rounds: int, *, warm_up: int = 0) -> list[float]:
    """Median seconds of each sampler, in turns."""
    return [statistics.median(s) for s in take_turns(samplers, rounds, warm_up=warm_up)]


def spread(samples: Sequence[float]) -> float:
    """Half the range between the quartiles, relative to the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle


@dataclass(frozen=True)
class Timing:
    """The summary of one call's samples."""

    microseconds: float
    """The median."""
    spread: float
    """Half the range between the quartiles, relative to the median."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Timing":
        """Summarizes samples in seconds, two at least."""
        return cls(statistics.median(samples) * 1e6, spread(samples))

    def __str__(self) -> str:
        return f"{self.microseconds:.1f} ±{self.spread:.1%}"


def timings(samplers: Mapping[Key, Sampler], rounds: int) -> dict[Key, Timing]:
    """The times of all samplers, in turns, by the same keys."""
    samples = take_turns(list(samplers.values()), rounds)
    return {key: Timing.of(taken) for key, taken in zip(samplers, samples, strict=True)}


def screened(
    candidates: Mapping[Key, Sampler],
    others: Mapping[Key, Sampler],
    rounds: int,
    *,
    finalists: int = FINALISTS,
    again: Callable[[Key], Sampler] | None = None,
) -> tuple[dict[Key, Timing], dict[Key, Timing]]:
    """The times of all candidates by a few rounds; and, by `rounds` more, those of the fastest of
    them and of the others. again: the sampler of a candidate in these rounds, if it is another."""
    first = timings(candidates, SCREENING_ROUNDS) if candidates else {}
    fastest = sorted(first, key=lambda key: first[key].microseconds)[:finalists]
    last = {key: again(key) if again else candidates[key] for key in fastest} | dict(others)
    return first, timings(last, rounds)


def set_count(bytes_: int, most: int = MAX_SETS, total: int = COLD_BYTES) -> int:
    """Sets of operands, of so many bytes each, that together exceed any L2 cache."""
    return min(most, total // bytes_ + 1)


def new_event() -> Any:
    """A CUDA event that has a time."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def synchronize() -> None:
    """Waits for the GPU, if this process uses one."""
    if sys.modules.get("torch") is None:
        return
    import torch  # whole: another thread may be at it

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
