"""Measuring over the ranks of a process group, a GPU for each: what torchrun starts. Without GPUs
everything goes by gloo on the CPU, where results are checked and times mean nothing."""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from octofold._timing import take_turns

from .run import Item, OutOfTime, Run

Call = Callable[[], Any]
ON_GPU = torch.cuda.is_available()
DEVICE = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if ON_GPU else torch.device("cpu")
)


class Times(NamedTuple):
    """Microseconds of a call on the slowest rank: of rounds, the median and the quartiles."""

    median: float
    low: float
    high: float


class RankRun(Run):
    """This process as one of the ranks, with its GPU current. The first rank prints and writes."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.device = DEVICE

    def __enter__(self) -> "RankRun":
        timeout = timedelta(minutes=3)
        if ON_GPU:
            torch.cuda.set_device(DEVICE)
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=DEVICE)
        else:
            dist.init_process_group("gloo", timeout=timeout)
        torch.manual_seed(dist.get_rank())
        device = torch.cuda.get_device_name() if ON_GPU else "CPU"
        self.line(f"{dist.get_world_size()} × {device}, torch {torch.__version__}")
        self.record(
            "environment", case=device, ranks=dist.get_world_size(), torch=torch.__version__
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            _together()
            dist.destroy_process_group()

    def cases(self, items: Iterable[Item]) -> Iterator[Item]:
        """Collective: the items while all ranks have time."""
        for item in items:
            if not agreed(time.monotonic() - self._start < self.seconds):
                raise OutOfTime
            yield item
            self.release()

    def line(self, text: str = "") -> None:
        if dist.get_rank() == 0:
            super().line(text)

    def record(self, section: str, **facts: Any) -> None:
        if dist.get_rank() == 0:
            super().record(section, **facts)

    def require(self, right: bool, what: str) -> None:
        """Collective: whether something is right on all ranks. If not, that is said, and the exit
        code is 1."""
        if not agreed(right):
            self.failed = True
            self.line(f"WRONG: {what}")

    def times(
        self, section: str, case: str, found: Mapping[str, Times], base: str, **values: Any
    ) -> None:
        """A line for each: its time, the spread between quartiles, and its speed beside `base`."""
        for name, taken in found.items():
            speed = found[base].median / taken.median
            spread = 50 * (taken.high - taken.low) / taken.median
            self.line(
                f"  {case:<34} {name:<34} {taken.median:10.0f} µs ±{spread:3.0f} %"
                f" {speed:6.2f} × {base}"
            )
            self.record(section, case=case, name=name, speed=speed, **taken._asdict(), **values)


def agreed(right: bool) -> bool:
    """Collective: whether it is so on all ranks."""
    value = torch.tensor(int(right), device=DEVICE)
    dist.all_reduce(value, dist.ReduceOp.MIN)
    return bool(value.item())


def interleaved(calls: Mapping[str, Call], rounds: int, repeats: int = 1) -> dict[str, Times]:
    """Each call by turns, so that a clock that changes changes all; a sample is of so many calls in
    a row. One more goes before it, so that ranks are together and the host is ahead."""
    for call in calls.values():
        for _ in range(3):
            call()
    samplers = [partial(_microseconds, call, repeats) for call in calls.values()]
    samples = take_turns(samplers, rounds)  # in the same order on all ranks
    return {name: _times(each) for name, each in zip(calls, samples, strict=True)}


def _times(samples: list[float]) -> Times:
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Times(median, low, high)


def _microseconds(call: Call, repeats: int) -> float:
    _together()
    call()
    own = _on_gpu(call, repeats) if ON_GPU else _on_cpu(call, repeats)
    slowest = torch.tensor(own / repeats, device=DEVICE)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def _on_gpu(call: Call, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()  # of all streams, of which a call may use several
    return 1e3 * begin.elapsed_time(end)


def _on_cpu(call: Call, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1e6 * (time.perf_counter() - begin)


def _together() -> None:
    if ON_GPU:
        torch.cuda.synchronize()
    dist.barrier()
