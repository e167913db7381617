"""A way to compute a case: its calls, one for each set of operands, and whether it is right."""

import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from linear_bench.sampling import EventSampler, WallClockSampler
from octofold_tool.gpu.check import float64_rows
from octofold_tool.gpu.peers import Operand
from octofold_tool.gpu.timing import MIN_BYTES, Call, Sampler, graph_sampler, take_turns
from octofold_tool.measure import spread
from torch import Tensor

ERROR_LIMITS = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4, torch.float32: 3e-4}
PEER_ERROR_LIMIT = 5e-2  # what is further off computes something else
MAX_SETS = 64
SOME = 256  # columns that are compared
OURS = "octofold"


class Wrong(Exception):  # noqa: N818
    """A result is not the product."""


@dataclass
class Way:
    name: str
    calls: list[Call]
    error: Callable[[], float]
    """Of the first call's result, in memory that was poisoned before; NaN: not all was written."""
    error_limit: float = PEER_ERROR_LIMIT


@dataclass(frozen=True)
class Build:
    """A way that is yet to be built. build: of a candidate's name too, where it is ours."""

    name: str
    build: Callable[..., Way]
    pair: tuple[str, str] | None = None  # granularities, where it is ours

    @property
    def is_ours(self) -> bool:
        return self.pair is not None


@dataclass(frozen=True)
class Timing:
    microseconds: float  # median
    spread: float  # half the quartile range over the median
    method: str  # "graph", "events" or "wall clock"
    relative_error: float


def sets_of(bytes_: int) -> int:
    """Sets of operands that together are larger than any L2 cache."""
    return min(MIN_BYTES // bytes_ + 1, MAX_SETS)


def sampler_of(calls: Sequence[Call], device: torch.device) -> tuple[Sampler, str]:
    for call in (*calls, *calls[:1]):
        call()
    if device.type != "cuda":
        return WallClockSampler(calls), "wall clock"
    try:
        return graph_sampler(calls), "graph"
    except RuntimeError as error:
        torch.cuda.synchronize()
        print(f"  no CUDA graph: {str(error).splitlines()[0]}", flush=True)
        return EventSampler(calls), "events"


def checked(way: Way) -> float:
    """Its error; raises Wrong."""
    error = way.error()
    if not error <= way.error_limit:  # NaN is wrong too
        raise Wrong(f"relative error {error:.1e} exceeds {way.error_limit:.1e}")
    return error


def timed(ways: Sequence[Way], device: torch.device, rounds: int) -> dict[str, Timing]:
    """Of ways that take turns, by name. They have been checked."""
    samplers = [sampler_of(way.calls, device) for way in ways]
    samples = take_turns([sampler for sampler, _ in samplers], rounds)
    return {
        way.name: Timing(statistics.median(seconds) * 1e6, spread(seconds), method, float("nan"))
        for way, (_, method), seconds in zip(ways, samplers, samples, strict=True)
    }


class Reference:
    """Elements of a product of groups, in FP64 from the dequantized operands."""

    def __init__(self, a: Operand, b: Operand, rows_of: Sequence[range]) -> None:
        """a [rows, K], b [G · N, K]: of all groups, without leading dimensions. rows_of: of each
        group the rows of `a` that are its own."""
        self._a, self._b, self._rows_of = a, b, rows_of
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def error(self, out: Tensor) -> float:
        """Of out [rows, N], all of whose valid rows must be finite."""
        for rows in self._rows_of:
            if rows and not torch.isfinite(out[rows.start : rows.stop]).all():
                return float("nan")
        if not self._parts:
            self._parts = list(self._expected(out.shape[1], out.device))
        wrong = total = 0.0
        for some, columns, expected in self._parts:
            wrong += float((out[some][:, columns].double() - expected).square().sum())
            total += float(expected.square().sum())
        return float((wrong / total) ** 0.5) if total else 0.0

    def _expected(self, n: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, columns, and what stands there: of each group its ends and some between."""
        for group, rows in enumerate(self._rows_of):
            if not rows:
                continue
            places = {rows[0], rows[-1], rows[len(rows) // 2], rows[len(rows) // 3]}
            some = torch.tensor(sorted(places), device=device)
            columns = torch.randperm(n, device=device)[:SOME]
            expected = float64_rows(self._a, some) @ float64_rows(self._b, group * n + columns).T
            yield some, columns, expected


class Watchdog:
    """Ends the process if the `with` block takes longer: a kernel that hangs lets no exception
    through. What was measured before is shown first."""

    def __init__(self, seconds: float, what: str, last_words: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._what, self._last_words = f"{what}: no end after {seconds:.0f} s", last_words

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        print(self._what, flush=True)
        try:
            self._last_words()
        finally:
            os._exit(3)
