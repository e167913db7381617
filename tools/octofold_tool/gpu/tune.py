"""Which kernel is the fastest for a product on this GPU: all that could be, checked and timed."""

import dataclasses
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import octofold
import torch
from octofold import tuning
from octofold.kernel_cache import GemmProblem
from octofold.tuning import Choice

from ..measure import spread
from ..products import GemmOptions
from ..suites import Shape
from .check import error_of
from .gemm import check_ours, prepare
from .peers import OCTOFOLD, Product
from .timing import MIN_BYTES, Call, NewSampler, take_turns

SCREENING_ROUNDS = 3
FINALISTS = 6

NewCall = Callable[[Product, str, GemmOptions], Call]
"""The product by the candidate of a name."""


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

    def choice(self, options: GemmOptions, *, planned: bool) -> Choice:
        """The fastest, or the planned one."""
        problem = problem_of((self.m, self.n, self.k), options)
        theirs = (self.planned, self.planned_microseconds)
        name, time = theirs if planned else (self.candidate, self.microseconds)
        return Choice(problem, name, time, self.planned_microseconds)


def problem_of(shape: Shape, options: GemmOptions) -> GemmProblem:
    return GemmProblem(
        *shape,
        *options.dtypes,
        options.out_dtype,
        *options.granularities,
        fast_accumulation=options.fast_accumulation,
    )


def is_sensible(name: str, m: int) -> bool:
    """Whether it could be the fastest for so many rows of A: none was, on an H200, whose tile is
    mostly of rows that are not there, or that reads B again for every few rows."""
    rows, columns = (int(size) for size in name.split(".")[0].split("x"))
    if ".swapped" in name:
        return columns <= max(16, 2 * m) and m <= 4 * columns
    return m > 8 and rows <= max(128, 2 * m)


def by_candidate(product: Product, name: str, options: GemmOptions) -> Call:
    a, b = product.a, product.b
    assert isinstance(a, octofold.ScaledTensor)
    assert isinstance(b, octofold.ScaledTensor)
    return lambda: tuning.gemm(a, b, product.out, name, options.fast_accumulation)


def tune(
    shape: Shape,
    options: GemmOptions,
    multiprocessors: int,
    sampler: NewSampler,
    device: torch.device,
    new_call: NewCall = by_candidate,
    min_bytes: int = MIN_BYTES,
) -> Tuned:
    """Screen all sensible candidates in turns, then time the best and the planned one in turns for
    longer. Raises ToolError where one is wrong."""
    problem = problem_of(shape, options)
    planned = tuning.planned(problem, multiprocessors)
    names = [
        name
        for name in tuning.candidates(problem)
        if name == planned or is_sensible(name, shape[0])
    ]
    products, _ = prepare(shape, options, device, min_bytes, (OCTOFOLD,))
    sets = products[OCTOFOLD.name]
    calls = {name: [new_call(product, name, options) for product in sets] for name in names}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiles what was not
        list(pool.map(lambda each: each[0](), calls.values()))
    for ours in calls.values():
        product = dataclasses.replace(sets[0], run=ours[0])
        check_ours(shape, error_of(product), product, options)

    samplers = {name: sampler(ours) for name, ours in calls.items()}
    screened = take_turns(list(samplers.values()), SCREENING_ROUNDS)
    times = dict(zip(samplers, map(statistics.median, screened), strict=True))
    best = sorted(times, key=times.__getitem__)[:FINALISTS]
    finalists = dict.fromkeys([*best, planned])
    turns = take_turns([samplers[name] for name in finalists], options.rounds)
    samples = dict(zip(finalists, turns, strict=True))
    fastest = min(samples, key=lambda name: statistics.median(samples[name]))
    return Tuned(
        *shape,
        candidate=fastest,
        microseconds=statistics.median(samples[fastest]) * 1e6,
        spread=spread(samples[fastest]),
        planned=planned,
        planned_microseconds=statistics.median(samples[planned]) * 1e6,
        planned_spread=spread(samples[planned]),
        timed=len(names),
    )
