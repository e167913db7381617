"""The fastest kernels on a GPU, as measured there: tables that products follow.

>>> with octofold.tuning.recording() as problems:
...     model(x)
>>> problems
["gemm: m 64, n 7168, k 2048, a e4m3 1x128, b e4m3 128x128, out bfloat16", ...]
>>> octofold.tuning.candidates(problems[0])  # what there is to measure
>>> octofold.tuning.table()                  # what products follow here

A problem is a product without its arrays, a text. `octofold tune` measures and writes;
docs/tuning.md tells the rest.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._core.errors import UnavailableError, invalid_argument, io_error
from ._core.files import path_of
from ._core.library import library
from ._info import Gpu, info
from ._sample_product import sample_product

__all__ = [
    "Choice",
    "Table",
    "candidates",
    "clear",
    "complete",
    "planned",
    "recording",
    "run",
    "table",
    "using",
    "write",
]


@dataclass(frozen=True)
class Choice:
    """A measured choice for a product."""

    problem: str
    candidate: str
    """The name of what the product is to take: the fastest, one of candidates()."""
    microseconds: float
    planned_microseconds: float
    """The time of planned() in the same run."""


@dataclass(frozen=True)
class Table:
    """A table of measured choices."""

    file: Path | None
    """The one that OCTOFOLD_TUNING names, else <GPU's name>.json in the folder `tuning` of the
    kernel cache. None where there is no such place, or OCTOFOLD_TUNING is 0."""
    fault: str
    """Why it is not followed: another GPU's, another version's, damaged. "" where it is, or there
    is none."""
    products: int
    """How many it has."""
    shipped: int
    """How many the table of this GPU has that comes with octofold: products follow it where the
    other one has nothing."""


@contextmanager
def recording() -> Iterator[list[str]]:
    """Note the products of the process while the block runs: of all its threads, so of a backward
    pass too. The list that it yields has each problem once, in the order of their first calls, when
    the block is done.

    The texts do not depend on the device: run a model on the CPU to learn what it multiplies on a
    GPU. Of layers whose way depends on the GPU (docs/older-gpus.md) they are those of the device at
    hand. Tensors without data (torch's meta device) are not multiplied, and nothing is noted.
    """
    problems: list[str] = []
    so_far = library.record_products()  # which records as long as this lives
    try:
        yield problems
    finally:
        problems.extend(map(str, so_far()))
        del so_far


@contextmanager
def using(candidate: str | None) -> Iterator[None]:
    """Have the products that this thread computes on a GPU take the candidate of this name; None:
    the fastest. They are planned anew in each call, and are meant to be timed in a CUDA graph. As a
    decorator, using(candidate)(function), it holds for the function's calls.

    Such a product raises InvalidArgumentError, which lists the candidates, if none of its own has
    the name, and on the CPU, which has one kernel without a name.
    """
    before = library.use_candidate(candidate or "")
    try:
        yield
    finally:
        library.use_candidate(before)


def run(problem: str, candidate: str | None = None, device: Any = "cuda") -> Any:
    """Compute a product of random operands, as operations allocate them, by the candidate of this
    name; None: by the fastest. Groups have 0.7 to 1.3 of the mean size, the same in each run. Takes
    torch.

    Returns the result, on the device.
    Raises as candidates(), and as the product does with using(candidate); InvalidArgumentError for
    the problem of tensors that lie otherwise.
    """
    product = sample_product(problem, device)
    with using(candidate):
        product.call()
    return product.out


def complete(problem: str) -> str:
    """The problem with all that may be left out, as tables and recordings have it. docs/tuning.md
    lists the phrases.

    Example: octofold.tuning.complete("gemm: m 64, n 7168, k 2048, b e4m3 channel")
    Raises InvalidArgumentError, which names the phrase, what is allowed and what came.
    """
    return str(library.complete_problem(problem))


def candidates(problem: str, architecture: str = "sm_90a") -> tuple[str, ...]:
    """List the names of the kernels that can compute a product. The sizes matter for weight-only
    products alone.

    architecture: "sm_90a", "sm_89", "sm_120" or "sm_121".
    Raises as complete(); UnsupportedError for an architecture without kernels for it.
    """
    return tuple(map(str, library.product_candidates(problem, architecture, 132)))


def planned(problem: str, multiprocessors: int = 132, architecture: str = "sm_90a") -> str:
    """The candidate with the least predicted time, which the product uses if no table has it.

    multiprocessors: 132 is that of H100 (SXM) and H200.
    Raises as candidates(), and UnsupportedError for sizes that kernels cannot count.
    """
    return str(library.planned_candidate(problem, architecture, multiprocessors))


def table(gpu: Gpu | int = 0) -> Table:
    """The table of a GPU at hand (its index, or one of info()'s), as it is on disk now. A process
    reads it once, at its first product.

    Raises UnavailableError if there is no such GPU.
    """
    fields = library.tuning_table(*_machine(_gpu(gpu)))
    file = path_of(fields["file"]) if fields["file"] else None
    counts = int(fields["products"]), int(fields["shipped"])
    return Table(file, str(fields["fault"]), *counts)


def write(choices: Iterable[Choice], gpu: Gpu | int = 0) -> Path:
    """Put choices into the GPU's table, in place of what it has for the same products. Nothing is
    kept of a table that is not followed. The file is replaced as a whole, or left as it was.

    Returns the file. Raises IoError if it cannot be written, UnavailableError if there is no place
    for it or no such GPU.
    """
    rows = [(c.problem, c.candidate, c.microseconds, c.planned_microseconds) for c in choices]
    return path_of(library.write_choices(*_machine(_gpu(gpu)), rows))


def clear(gpu: Gpu | int = 0) -> bool:
    """Remove the GPU's table. Returns whether there was one. Raises IoError where it cannot."""
    file = table(gpu).file
    try:
        if file is None or not file.exists():
            return False
        file.unlink()
    except OSError as error:
        raise io_error(error, f"tuning.clear: '{file}'") from None
    return True


def _machine(gpu: Gpu) -> tuple[str, int, int, int]:
    return gpu.name, gpu.compute_major, gpu.compute_minor, gpu.multiprocessors


def _gpu(gpu: Gpu | int) -> Gpu:
    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, int) or isinstance(gpu, bool) or gpu < 0:
        raise invalid_argument("tuning", "gpu", "the index of a GPU, or one of info()'s", repr(gpu))
    gpus = info().gpus
    if gpu >= len(gpus):
        raise UnavailableError(f"tuning: expected a GPU of index {gpu}, got {len(gpus)} GPUs here")
    return gpus[gpu]
