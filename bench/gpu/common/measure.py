"""A case is computed by several implementations: each is built, checked, and timed in turns with
the others."""

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
    screened,
    timings,
)
from octofold_tool.gpu.tune import run_in_threads

from .run import Run, print_table

PEER_ERROR_LIMIT = 5e-2
"""A peer that is further off computes something else."""
ERROR_LIMITS = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4, torch.float32: 3e-4}
"""Limits of our products' errors, relative to the norm, by the result's type (docs/numerics.md)."""
PLANNED = "planned"
QUICK = Method("graph", window=0.7e-3, rest=4e-3)
"""For many candidates."""

Errors = float | Mapping[str, float]


class Wrong(Exception):  # noqa: N818
    """A result is not what it has to be."""


@dataclass
class Implementation:
    """How a case is computed."""

    calls: Sequence[Call]
    """One for each set of operands."""
    errors: Callable[[], Errors]
    """Relative errors of the first call's results, in memory that held NaN before; NaN: not all of
    it was written."""
    limit: float = PEER_ERROR_LIMIT
    least: float = 0.0
    """An error of the first result below this was not computed in FP8."""
    method: Method | None = None
    """None: by CUDA graphs where the calls are short and can be captured, else by events."""


@dataclass(frozen=True)
class Build:
    """An implementation that is yet to be built."""

    name: str
    make: Callable[[], Implementation]
    ours: bool = False
    bytes: float = 0
    """Bytes that a call has to move at least."""
    operations: float = 0


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


def checked(made: Implementation) -> dict[str, float]:
    """Its errors. Raises Wrong."""
    errors = made.errors()
    named = dict(errors) if isinstance(errors, Mapping) else {"error": errors}
    for result, error in named.items():
        if not error <= made.limit:  # NaN is wrong too
            raise Wrong(f"relative {result} {error:.2e} exceeds {made.limit:.0e}")
    if next(iter(named.values()), made.least) < made.least:
        raise Wrong(f"relative errors {named}: not computed in FP8")
    return named


def sampler_of(made: Implementation, run: Run) -> tuple[Sampler, str]:
    """A sampler, and the kind of its method."""
    for call in made.calls:
        call()
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


Candidates = tuple[dict[str, list[float]], list[str]]
"""Microseconds by name, of all and then of the finalists again; and the names of what is wrong."""


def measure_candidates(
    run: Run,
    section: str,
    case: str,
    names: Sequence[str],
    make: Callable[[str | None], Implementation],
    others: Iterable[Build] = (),
    **facts: Any,
) -> Candidates:
    """Every kernel configuration of ours, screened; then the fastest beside what is planned and the
    others. `make` takes a candidate's name, or None for what is planned."""
    made = {PLANNED: make(None)} | {name: make(name) for name in names}
    run_in_threads(partial(attempt, one.calls[0]) for one in made.values())
    wrong = []
    for name, one in made.items():
        try:
            checked(one)
        except Exception as error:
            run.leave_out(name, True, error, case=case)
            wrong.append(name)
    method = QUICK if run.on_gpu else CPU
    samplers = {}
    for name, one in made.items():
        if name not in wrong:
            for call in one.calls:
                call()
            samplers[name] = method.sampler(one.calls)
    beside = {PLANNED: samplers.pop(PLANNED)} if PLANNED in samplers else {}
    kept = []
    for build in others:
        try:
            peer = build.make()
            checked(peer)
            for call in peer.calls:
                call()
            beside[build.name] = method.sampler(peer.calls)
            kept.append(peer)
        except Exception as error:
            run.leave_out(build.name, build.ours, error, case=case)
    first, last = screened(samplers, beside, run.rounds)
    times = {name: [timing.microseconds] for name, timing in first.items()}
    for name, timing in last.items():
        times.setdefault(name, []).append(timing.microseconds)
    run.record(section, case=case, **facts, times=times, wrong=wrong)
    ours = [name for name in last if name in samplers] or list(last)
    if ours:
        best = min(ours, key=lambda name: last[name].microseconds)
        ordered = sorted(last, key=lambda name: last[name].microseconds)
        base = last[best].microseconds
        ratios = ", ".join(f"{name} {last[name].microseconds / base:.3f}" for name in ordered)
        print(f"{section} {case}: {last[best]} µs {best}; times over it: {ratios}")
    return times, wrong


def geometric_mean(ratios: Iterable[float]) -> str:
    known = list(ratios)
    return f"{statistics.geometric_mean(known):.3f}" if known else "—"
