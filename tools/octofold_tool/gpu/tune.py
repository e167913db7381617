"""Finds the fastest kernel for a product on this GPU: all that could be, checked and timed."""

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from octofold import tuning
from octofold._timing import COLD_BYTES, Call, Method, set_count
from octofold.tuning import Choice, Problem

from ..gemm_options import Shape
from ..products import GemmOptions
from ..report import ToolError
from .measuring import Implementation, Wrong, checked, run_in_threads, screen
from .tunable import KINDS, Case

NewCall = Callable[[Case, str], Call]
"""A case by the candidate of a name."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The product that is to be tuned, at each shape."""

    options: GemmOptions
    product: str = "gemm"
    groups: int = 1

    def problem(self, shape: Shape) -> Problem:
        return KINDS[self.product].problem(shape, self.options, self.groups)

    def prepare(self, shape: Shape, device: torch.device, min_bytes: int) -> list[Case]:
        """Returns as many cases as are larger than caches together."""
        kind = KINDS[self.product]
        cases = [kind.prepare(shape, self.options, self.groups, device)]
        while len(cases) < set_count(cases[0].bytes(), total=min_bytes):
            cases.append(kind.prepare(shape, self.options, self.groups, device))
        return cases


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A product, its fastest candidate, and the one that is planned without a table."""

    m: int
    n: int
    k: int
    candidate: str
    microseconds: float
    spread: float  # half the quartile range over the median
    planned: str
    planned_microseconds: float
    planned_spread: float
    timed: int  # candidates

    @property
    def gain(self) -> float:
        """The planned one's time over the fastest's."""
        return self.planned_microseconds / self.microseconds

    def choice(self, wanted: Wanted, *, planned: bool) -> Choice:
        """The fastest, or the planned one."""
        problem = wanted.problem((self.m, self.n, self.k))
        theirs = (self.planned, self.planned_microseconds)
        name, time = theirs if planned else (self.candidate, self.microseconds)
        return Choice(problem, name, time, self.planned_microseconds)


def is_sensible(name: str, m: int) -> bool:
    """True if it could be the fastest for so many rows of A: none was, on an H200, whose tile is
    mostly of rows that are not there, or that reads B again for every few rows."""
    rows, columns = (int(size) for size in name.split(".")[0].split("x"))
    if ".swapped" in name:
        return columns <= max(16, 2 * m) and m <= 4 * columns
    return m > 8 and rows <= max(128, 2 * m)


def tune(
    shape: Shape,
    wanted: Wanted,
    multiprocessors: int,
    method: Method,
    device: torch.device,
    new_call: NewCall = Case.by,
    min_bytes: int = COLD_BYTES,
    last: Method | None = None,
) -> Tuned:
    """Screen all sensible candidates in turns, then time the best and the planned one in turns for
    longer, by the method `last` if that is another. Raises ToolError where one is wrong."""
    problem = wanted.problem(shape)
    planned = tuning.planned(problem, multiprocessors)
    names = [
        name
        for name in tuning.candidates(problem)
        if wanted.product != "gemm" or name == planned or is_sensible(name, shape[0])
    ]
    cases = wanted.prepare(shape, device, min_bytes)
    made = {}
    for name in names:
        calls = [new_call(case, name) for case in cases]
        made[name] = Implementation(calls, partial(cases[0].error, calls[0]), cases[0].limit)
    run_in_threads(each.calls[0] for each in made.values())
    for name, each in made.items():
        try:
            checked(each)
        except Wrong as wrong:
            what = f"{wanted.product} {shape} by {name}"
            raise ToolError(f"{what}: {wrong}: a fault of ours") from None
    _, times = screen(made, {planned: made[planned]}, wanted.options.rounds, method, last)
    fastest = min(times, key=lambda name: times[name].microseconds)
    return Tuned(
        *shape,
        candidate=fastest,
        microseconds=times[fastest].microseconds,
        spread=times[fastest].spread,
        planned=planned,
        planned_microseconds=times[planned].microseconds,
        planned_spread=times[planned].spread,
        timed=len(names),
    )
