"""The results of a case's implementations: lines of JSON and tables."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from octofold._timing import (
    CPU,
    EVENTS,
    GRAPH,
    Call,
    Method,
    NotCapturableError,
    Sampler,
    Timing,
    timings,
)
from octofold_tool.gpu.measuring import Implementation, checked, run_in_threads, screen
from octofold_tool.measure import ERROR_LIMITS as LIMITS_BY_NAME

from .operands import DTYPES, sets_of
from .run import Run, print_table

ERROR_LIMITS = {DTYPES[name]: limit for name, limit in LIMITS_BY_NAME.items()}
"""Limits of our products' errors, relative to the norm, by the result's type (docs/numerics.md)."""
PLANNED, COPY = "planned", "copy"
QUICK = Method("graph", window=0.7e-3, rest=4e-3)
"""For many candidates."""


@dataclass(frozen=True)
class Build:
    """An implementation that is yet to be built."""

    name: str
    make: Callable[..., Implementation]
    """Takes a candidate's name, too, if it is ours."""
    ours: bool = False
    bytes: float = 0
    """Bytes that a call has to move at least."""
    operations: float = 0
    names: Sequence[str] = ()
    """Candidates of ours."""


@dataclass(frozen=True)
class Result:
    """The timing and the errors that were measured of an implementation."""

    build: Build
    timing: Timing
    method: str
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def microseconds(self) -> float:
        return self.timing.microseconds

    @property
    def facts(self) -> dict[str, Any]:
        """For a line of JSON."""
        rates = {
            "gigabytes_per_second": self.build.bytes / self.microseconds * 1e-3,
            "tflops": self.build.operations / self.microseconds * 1e-6,
        }
        known = {name: rate for name, rate in rates.items() if rate}
        times = {"microseconds": self.microseconds, "spread": self.timing.spread}
        return {"name": self.build.name, **times, "method": self.method, **known, **self.errors}


def sampler_of(made: Implementation, run: Run) -> tuple[Sampler, str]:
    """A sampler, and the kind of its method."""
    made.warm()
    method = made.method or GRAPH
    if not run.on_gpu:
        method = method if method.kind == "host" else CPU
    elif made.method is None:
        once = replace(EVENTS, rest=0.0, passes=1).sampler(made.calls)
        if once() >= GRAPH.window:
            method = replace(EVENTS, passes=1)
    try:
        return method.sampler(made.calls), method.kind
    except NotCapturableError as error:
        print(f"  no CUDA graph: {str(error)[:200]}")
        return EVENTS.sampler(made.calls), EVENTS.kind


def measure(
    run: Run,
    section: str,
    case: str,
    builds: Iterable[Build],
    baseline: str | Callable[[str], str] | None = None,
    **facts: Any,
) -> dict[str, Result]:
    """The results of the implementations that work and are right, by name: a line of JSON for each,
    and a table.

    baseline: the name of the implementation whose time others are compared with, or that name for
        each name; None: the first.
    """
    samplers: dict[str, Sampler] = {}
    found: dict[str, tuple[Build, str, dict[str, float]]] = {}
    kept = []  # graphs read what implementations hold
    for build in builds:
        run.check_time()
        try:
            made = build.make()
            errors = checked(made)
            samplers[build.name], kind = sampler_of(made, run)
        except Exception as error:  # a peer may fail in any way
            run.leave_out(build.name, build.ours, error, case=case)
            continue
        kept.append(made)
        found[build.name] = build, kind, errors
    times = timings(samplers, run.rounds)
    results = {
        name: Result(build, times[name], kind, errors)
        for name, (build, kind, errors) in found.items()
    }
    for result in results.values():
        run.record(section, case=case, **facts, **result.facts)
    if results:
        show(f"{section} {case}", results, baseline)
    return results


def show(
    title: str,
    results: Mapping[str, Result],
    baseline: str | Callable[[str], str] | None = None,
) -> None:
    """A row for each result."""
    first = next(iter(results))
    beside = baseline if callable(baseline) else lambda _: baseline or first
    rows = []
    for name, result in results.items():
        base = results.get(beside(name), results[first])
        facts = result.facts
        rows.append(
            [
                name,
                f"{result.microseconds:.2f}",
                f"{result.timing.spread:.1%}",
                f"{result.microseconds / base.microseconds:.3f}",
                f"{base.microseconds / result.microseconds:.3f}",
                f"{facts['gigabytes_per_second']:.0f}" if result.build.bytes else "",
                f"{facts['tflops']:.1f}" if result.build.operations else "",
                " ".join(f"{error:.1e}" for error in result.errors.values()),
                "" if result.method == "graph" else result.method,
            ]
        )
    over = "" if callable(baseline) else f" ({baseline if baseline in results else first})"
    columns = ["", "µs", "±", "time", "speed", "GB/s", "TFLOPS", "errors", "method"]
    print_table(f"{title}; time and speed relative to the baseline's{over}", columns, rows)


def attempt(call: Call) -> None:
    """Compiles its kernels; what is wrong with it is said by its check."""
    with suppress(Exception):
        call()


Candidates = dict[str, list[float]]
"""Microseconds by name: of all, and then of the finalists again."""


def measure_candidates(
    run: Run,
    section: str,
    case: str,
    names: Sequence[str],
    make: Callable[[str | None], Implementation],
    others: Iterable[Build] = (),
    texts: Sequence[str] | None = None,
    **facts: Any,
) -> Candidates:
    """Every kernel configuration of ours, screened; then the fastest beside what is planned and the
    others. `make` takes a candidate's name, or None for what is planned.

    texts: only the names with one of these in them.
    """
    names = [name for name in names if not texts or any(text in name for text in texts)]
    made = {PLANNED: make(None)} | {name: make(name) for name in names if run.on_gpu}
    run_in_threads(partial(attempt, one.calls[0]) for one in made.values())
    wrong = [name for name, one in made.items() if not is_right(run, name, True, one, case)]
    ours = {name: one for name, one in made.items() if name not in wrong}
    beside = {PLANNED: ours.pop(PLANNED)} if PLANNED in ours else {}
    for build in others:
        try:
            peer = build.make()
        except Exception as error:  # a peer may fail in any way
            run.leave_out(build.name, build.ours, error, case=case)
            continue
        if is_right(run, build.name, build.ours, peer, case):
            beside[build.name] = peer
    first, last = screen(ours, beside, run.rounds, QUICK if run.on_gpu else CPU)
    times = {name: [timing.microseconds] for name, timing in first.items()}
    for name, timing in last.items():
        times.setdefault(name, []).append(timing.microseconds)
    run.record(section, case=case, **facts, times=times, wrong=wrong)
    show_finalists(f"{section} {case}", last, [name for name in last if name in ours])
    return times


def is_right(run: Run, name: str, ours: bool, made: Implementation, case: str) -> bool:
    try:
        checked(made)
    except Exception as error:
        run.leave_out(name, ours, error, case=case)
        return False
    return True


def show_finalists(title: str, times: Mapping[str, Timing], ours: Sequence[str]) -> None:
    """The fastest of ours, and the times of all over its own."""
    if not times:
        return
    best = min(ours or times, key=lambda name: times[name].microseconds)
    ordered = sorted(times, key=lambda name: times[name].microseconds)
    base = times[best].microseconds
    ratios = ", ".join(f"{name} {times[name].microseconds / base:.3f}" for name in ordered)
    print(f"{title}: {times[best]} µs {best}; times over it: {ratios}")


def copy_of(moved: int, run: Run) -> Build:
    """Copies of device memory."""

    def pair() -> list[torch.Tensor]:
        return [
            torch.empty(moved // 2, dtype=torch.uint8, device=run.device).random_() for _ in "ab"
        ]

    def make() -> Implementation:
        pairs = sets_of(pair, moved, run)
        return Implementation([partial(to.copy_, of) for to, of in pairs], lambda: 0.0)

    return Build(COPY, make, bytes=moved)


def beside_copy(
    run: Run, section: str, name: str, moved: int, builds: Iterable[Build]
) -> dict[str, Result]:
    """The column "speed" is the share of the rate of a copy that moves as many bytes."""
    return measure(run, section, name, [*builds, copy_of(moved, run)], COPY)


def keeping(function: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> list[Call]:
    """Calls that each keep their result until they run again, so that no two of them write to the
    same memory."""
    kept: dict[int, Any] = {}

    def call(index: int, *arguments: Any) -> None:
        kept[index] = function(*arguments)

    return [partial(call, index, *arguments) for index, arguments in enumerate(sets)]


def geometric_mean(ratios: Iterable[float]) -> str:
    known = list(ratios)
    return f"{statistics.geometric_mean(known):.3f}" if known else "—"
