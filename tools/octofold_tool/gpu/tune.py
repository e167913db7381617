"""Finds the fastest kernel for a product on this GPU: all that could be, checked and timed."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial

import torch
from octofold import ScaledTensor, tuning
from octofold._sample_product import SampleProduct, sample_product
from octofold._timing import COLD_BYTES, Call, Method, set_count
from octofold.tuning import Choice

from ..measure import error_limit
from ..report import ToolError
from .measuring import (
    FAST_ACCUMULATION_ERROR_LIMIT,
    Implementation,
    Operand,
    Wrong,
    bytes_of,
    checked,
    poison,
    relative_error,
    run_in_threads,
    screen,
)

# Its result is cast to FP8 of 4 significant bits.
GATED_ERROR_LIMIT = 5e-2
# Weights whose scales differ along the depth are rounded to 16 bits before they are multiplied.
GRADIENT_ERROR_LIMIT = 5e-3

NewCall = Callable[[SampleProduct, str], Call]
"""A product by the candidate of a name."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A product, its fastest candidate, and the one that is planned without a table."""

    problem: str
    candidate: str
    microseconds: float
    spread: float  # half the quartile range over the median
    planned: str
    planned_microseconds: float
    planned_spread: float
    screened: dict[str, float]  # microseconds of all candidates, by a few rounds

    @property
    def gain(self) -> float:
        """The planned one's time over the fastest's."""
        return self.planned_microseconds / self.microseconds

    def choice(self, *, planned: bool) -> Choice:
        """The fastest, or the planned one."""
        theirs = (self.planned, self.planned_microseconds)
        name, time = theirs if planned else (self.candidate, self.microseconds)
        return Choice(self.problem, name, time, self.planned_microseconds)


def is_sensible(name: str, m: int) -> bool:
    """True if it could be the fastest for so many rows of A: none was, on an H200, whose tile is
    mostly of rows that are not there, or that reads B again for every few rows."""
    rows, columns = (int(size) for size in name.split(".")[0].split("x"))
    if ".swapped" in name:
        return columns <= max(16, 2 * m) and m <= 2 * columns
    return m > 8 and rows <= max(128, 2 * m)


def candidates(problem: str, planned: str) -> list[str]:
    """The names of those that could be the fastest."""
    names = tuning.candidates(problem)
    plain = re.match(r"gemm: m (\d+),(?!.*cast_from)", problem)
    if plain is None:
        return list(names)
    return [name for name in names if name == planned or is_sensible(name, int(plain[1]))]


def by_name(product: SampleProduct, name: str) -> Call:
    return tuning.using(name)(product.call)


def samples(problem: str, device: torch.device, min_bytes: int) -> list[SampleProduct]:
    """Makes as many as are larger than caches together."""
    products = [sample_product(problem, device)]
    size = bytes_of(*products[0].operands, products[0].out)
    while len(products) < set_count(size, total=min_bytes):
        products.append(sample_product(problem, device))
    return products


def limit_of(problem: str, out: Operand, elements: int) -> float:
    """The limit of the relative error of a right result of so many elements."""
    if isinstance(out, ScaledTensor):
        return GATED_ERROR_LIMIT
    limit = error_limit(str(out.dtype).removeprefix("torch."), elements)
    if "_gradient" in problem:
        return max(limit, GRADIENT_ERROR_LIMIT)
    return max(limit, FAST_ACCUMULATION_ERROR_LIMIT) if "fast_accumulation" in problem else limit


def check_of(problem: str, product: SampleProduct) -> tuple[Callable[[Call], float], float]:
    """The relative error of what a call writes, NaN if anything was not written; and its limit."""
    expected = product.expected()

    def error(call: Call) -> float:
        poison(product.out)
        call()
        return relative_error(product.result(), expected)

    return error, limit_of(problem, product.out, expected.numel())


def tune(
    problem: str,
    rounds: int,
    multiprocessors: int,
    method: Method,
    device: torch.device,
    new_call: NewCall = by_name,
    min_bytes: int = COLD_BYTES,
    last: Method | None = None,
) -> Tuned:
    """Screen all sensible candidates in turns, then time the best and the planned one in turns for
    longer, by the method `last` if that is another. Raises ToolError where one is wrong."""
    planned = tuning.planned(problem, multiprocessors)
    names = candidates(problem, planned)
    products = samples(problem, device, min_bytes)
    error, limit = check_of(problem, products[0])
    made = {}
    for name in names:
        calls = [new_call(product, name) for product in products]
        made[name] = Implementation(calls, partial(error, calls[0]), limit)
    run_in_threads(each.calls[0] for each in made.values())
    for name, each in made.items():
        try:
            checked(each)
        except Wrong as wrong:
            raise ToolError(f"{problem}, by {name}: {wrong}: a fault of ours") from None
    screened, times = screen(made, {planned: made[planned]}, rounds, method, last)
    fastest = min(times, key=lambda name: times[name].microseconds)
    return Tuned(
        problem,
        candidate=fastest,
        microseconds=times[fastest].microseconds,
        spread=times[fastest].spread,
        planned=planned,
        planned_microseconds=times[planned].microseconds,
        planned_spread=times[planned].spread,
        screened={name: each.microseconds for name, each in screened.items()},
    )
