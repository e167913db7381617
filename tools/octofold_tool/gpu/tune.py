"""Which kernel is the fastest for a product on this GPU: all that could be, checked and timed."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import octofold
import torch
from octofold import tuning
from octofold._timing import COLD_BYTES, Call, Method, screened
from octofold.kernel_cache import GemmProblem
from octofold.tuning import Choice

from ..products import GemmOptions
from ..suites import Shape
from .check import error_of
from .gemm import check_ours, prepare
from .peers import OCTOFOLD, Product

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
    method: Method,
    device: torch.device,
    new_call: NewCall = by_candidate,
    min_bytes: int = COLD_BYTES,
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
    run_in_threads(ours[0] for ours in calls.values())
    for ours in calls.values():
        product = dataclasses.replace(sets[0], run=ours[0])
        check_ours(shape, error_of(product), product, options)

    samplers = {name: method.sampler(ours) for name, ours in calls.items()}
    _, times = screened(samplers, {planned: samplers[planned]}, options.rounds)
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


def run_in_threads(calls: Iterable[Call]) -> None:
    """Compiles the kernels of the calls that were not compiled yet."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda call: call(), calls))
