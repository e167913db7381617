"""Measuring over the ranks of a process group, a GPU for each: what torchrun starts."""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

# Multicast of NVLink is not used. Before torch and NCCL look.
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

Call = Callable[[], Any]


class Times(NamedTuple):
    """Microseconds of a call on the slowest rank: of rounds, the median and the quartiles."""

    median: float
    low: float
    high: float


class Report:
    """What the first rank prints, and writes as lines of JSON to a file."""

    def __init__(self, path: Path | None) -> None:
        self.failed = False
        self._file = path.open("a") if path is not None and dist.get_rank() == 0 else None
        self.line(f"{dist.get_world_size()} × {torch.cuda.get_device_name()}, {torch.__version__}")

    def line(self, text: str = "") -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)

    def write(self, section: str, case: str, **values: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"section": section, "case": case, **values}) + "\n")
            self._file.flush()

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
        for name, time in found.items():
            speed = found[base].median / time.median
            spread = (time.high - time.low) / time.median
            self.line(
                f"  {case:<34} {name:<34} {time.median:10.0f} µs ±{50 * spread:3.0f} %"
                f" {speed:6.2f} × {base}"
            )
            self.write(section, case, name=name, speed=speed, **time._asdict(), **values)


@contextmanager
def ranks(path: Path | None = None) -> Iterator[Report]:
    """This process as one of the ranks, with its GPU current. Leaves with exit code 1 if anything
    was wrong."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(minutes=3), device_id=device)
    report = Report(path)
    yield report
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    if report.failed:
        sys.exit(1)


def agreed(right: bool) -> bool:
    """Collective: whether it is so on all ranks."""
    value = torch.tensor(int(right), device="cuda")
    dist.all_reduce(value, dist.ReduceOp.MIN)
    return bool(value.item())


def interleaved(calls: Mapping[str, Call], rounds: int, repeats: int = 1) -> dict[str, Times]:
    """Each call by turns, so that a clock that changes changes all; a sample is of so many calls in
    a row. One more goes before it, so that ranks are together and the host is ahead."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(_microseconds(call, repeats))
    return {name: _times(values) for name, values in samples.items()}


def _times(samples: list[float]) -> Times:
    if len(samples) < 2:
        return Times(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Times(median, low, high)


def _microseconds(call: Call, repeats: int) -> float:
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    time = torch.tensor(1e3 * begin.elapsed_time(end) / repeats, device="cuda")
    dist.all_reduce(time, dist.ReduceOp.MAX)
    return float(time)
