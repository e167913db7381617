"""The fastest kernels on a GPU, as measured there: tables that products follow.

>>> octofold.tuning.candidates(GemmProblem(64, 7168, 2048))  # what there is to measure
>>> octofold.tuning.table()                                  # what products follow here

`octofold tune` measures and writes; docs/tuning.md tells the rest.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from ._core.errors import IoErrorWithErrno, UnavailableError, invalid_argument
from ._core.files import path_of, read_text, write_whole
from ._core.frameworks import Array, StreamLike
from ._core.library import library
from ._core.scaled_tensor import ScaledTensor
from ._info import Gpu, info
from ._ops.cast_sources import Gathered
from ._ops.gated_gemm import multiply_gated
from ._ops.gemm import multiply
from ._ops.gemm_weight_only import multiply_by_groups_of_weights, multiply_by_weights
from ._ops.grouped_gemm import Groups, Masked, Rows, multiply_groups
from .kernel_cache import GemmProblem

__all__ = [
    "Choice",
    "Problem",
    "ProductProblem",
    "Table",
    "WeightOnlyProblem",
    "candidates",
    "clear",
    "gated_gemm",
    "gemm",
    "gemm_weight_only",
    "grouped_gemm",
    "grouped_gemm_weight_only",
    "planned",
    "table",
    "write",
]


@dataclass(frozen=True)
class ProductProblem(GemmProblem):
    """A call of gemm(), grouped_gemm() or ops.gated_gemm() without its arrays.

    m, n, k: of the arguments. Of "rows" m is the rows of all groups, of "masked" those that each
        has room for, of "depth" k is that of all groups. Of a gated product n is the columns of its
        result, and `out` the dtype of its codes.
    """

    grouping: str | None = None
    """"rows", "masked" or "depth": the kind of groups of grouped_gemm(). None: there are none."""
    groups: int = 1
    expected_rows: int | None = None
    """The rows that a group of "masked" is expected to have. None: all."""
    gated: str | None = None
    """The activation of gated_gemm()."""
    cast_from: str | None = None
    """The dtype of an `a` that gemm() casts itself; `a` is then the dtype of its codes."""
    batch_invariant: bool = False


@dataclass(frozen=True)
class WeightOnlyProblem:
    """A call of gemm_weight_only(), grouped_gemm_weight_only() or one of their gradients, without
    its arrays.

    m, n: rows and columns of the result; of "rows" m is the rows of all groups, of "masked" those
        that each has room for. k: the depth that is summed.
    """

    m: int
    n: int
    k: int
    x: str = "bfloat16"
    w: str = "e4m3"
    w_granularity: str = "128x128"
    out: str = "bfloat16"
    gradient: bool = False
    grouping: str | None = None
    """"rows" or "masked": the kind of groups. None: there are none."""
    groups: int = 1
    expected_rows: int | None = None
    """The rows that a group of "masked" is expected to have, as in ProductProblem."""
    gathered: bool = False
    """True if the rows of "rows" are read where they lie."""
    batch_invariant: bool = False


Problem: TypeAlias = GemmProblem | WeightOnlyProblem
"""A product that tables can have."""


@dataclass(frozen=True)
class Choice:
    """A measured choice for a product."""

    problem: Problem
    candidate: str
    """The name of what the product is to take: the fastest, one of candidates()."""
    microseconds: float
    planned_microseconds: float
    """The time of planned() in the same run."""


@dataclass(frozen=True)
class Table:
    """A table of measured choices."""

    file: Path | None
    """OCTOFOLD_TUNING, else <GPU's name>.json in the folder `tuning` of the kernel cache. None
    where there is no such place, or OCTOFOLD_TUNING is 0."""
    fault: str
    """Why it is not followed: another GPU's, another version's, damaged. "" where it is, or there
    is none."""
    products: int
    """How many it has."""
    shipped: int
    """How many the table of this GPU has that comes with octofold: products follow it where the
    other one has nothing."""


def candidates(problem: Problem, architecture: str = "sm_90a") -> tuple[str, ...]:
    """List the names of the kernels that can compute a product of contiguous arrays. The sizes
    matter for weight-only products alone.

    architecture: "sm_90a", "sm_89", "sm_120" or "sm_121".
    Raises as the product does for dtypes and scales; UnsupportedError for an architecture without
    kernels for it.
    """
    return tuple(map(str, library.product_candidates(asdict(problem), architecture, 132)))


def planned(problem: Problem, multiprocessors: int = 132, architecture: str = "sm_90a") -> str:
    """The candidate with the least predicted time for contiguous arrays, which the product uses if
    no table has it.

    multiprocessors: 132 is that of H100 (SXM) and H200.
    Raises as candidates(), and as the product does for sizes.
    """
    return str(library.planned_candidate(asdict(problem), architecture, multiprocessors))


def gemm(
    a: Array | ScaledTensor,
    b: ScaledTensor,
    candidate: str,
    *,
    fast_accumulation: bool = False,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """octofold.gemm(a, b) on a GPU by the candidate of this name. It is planned anew in each call,
    and is meant to be timed in a CUDA graph.

    Raises as gemm() does; InvalidArgumentError lists the candidates if none has this name.
    """
    how = fast_accumulation, batch_invariant
    return multiply(a, b, None, None, "1x128", None, how, out, stream, candidate)


def grouped_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    groups: Groups,
    candidate: str,
    *,
    fast_accumulation: bool = False,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """octofold.grouped_gemm(a, b, groups) likewise."""
    options = None, None, None, (fast_accumulation, batch_invariant), out, stream
    return multiply_groups(a, b, groups, *options, candidate)


def gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    groups: Rows | None,
    candidate: str,
    *,
    activation: str = "swiglu",
    batch_invariant: bool = False,
    out: ScaledTensor | None = None,
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """octofold.ops.gated_gemm(a, b, groups) likewise."""
    return multiply_gated(
        a, b, groups, activation, "1x128", batch_invariant, out, stream, candidate
    )


def gemm_weight_only(
    x: Array,
    w: ScaledTensor,
    candidate: str,
    *,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """octofold.gemm_weight_only(x, w) likewise."""
    return multiply_by_weights(x, w, None, None, batch_invariant, out, stream, candidate)


def grouped_gemm_weight_only(
    x: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    candidate: str,
    *,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """octofold.grouped_gemm_weight_only(x, w, groups) likewise."""
    return multiply_by_groups_of_weights(
        x, w, groups, None, None, batch_invariant, out, stream, candidate
    )


def table(gpu: Gpu | int = 0) -> Table:
    """The table of a GPU at hand (its index, or one of info()'s), as it is on disk now. A process
    reads it once, at its first product.

    Raises UnavailableError if there is no such GPU.
    """
    gpu = _gpu(gpu)
    fields = library.tuning_table(
        gpu.name, gpu.compute_major, gpu.compute_minor, gpu.multiprocessors
    )
    file = path_of(fields["file"]) if fields["file"] else None
    counts = int(fields["products"]), int(fields["shipped"])
    return Table(file, str(fields["fault"]), *counts)


def write(choices: Iterable[Choice], gpu: Gpu | int = 0) -> Path:
    """Put choices into the GPU's table, in place of what it has for the same products. Nothing is
    kept of a table that is not followed. The file is replaced as a whole, or left as it was.

    Returns the file. Raises IoError if it cannot be written, UnavailableError if there is no place
    for it or no such GPU.
    """
    gpu = _gpu(gpu)
    there = table(gpu)
    if there.file is None:
        raise UnavailableError(
            "tuning.write: expected a folder for tables, got none: name one in OCTOFOLD_CACHE_DIR, "
            "and leave OCTOFOLD_TUNING unset"
        )
    is_kept = there.products and not there.fault
    products = json.loads(read_text(there.file))["products"] if is_kept else {}
    for choice in choices:
        products[_key(choice.problem)] = {
            "candidate": choice.candidate,
            "microseconds": round(choice.microseconds, 3),
            "planned_microseconds": round(choice.planned_microseconds, 3),
        }
    document = {
        "octofold": str(library.version()),
        "gpu": gpu.name,
        "compute_capability": f"{gpu.compute_major}.{gpu.compute_minor}",
        "multiprocessors": gpu.multiprocessors,
        "products": dict(sorted(products.items())),
    }
    file = there.file
    try:
        for folder in (file.parent.parent, file.parent):  # for nobody else to write to
            folder.mkdir(0o755, parents=True, exist_ok=True)
        write_whole(file, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise IoErrorWithErrno(f"{error.errno}:tuning.write: '{file}': {error.strerror}") from None
    return file


def clear(gpu: Gpu | int = 0) -> bool:
    """Remove the GPU's table. Returns whether there was one. Raises IoError where it cannot."""
    file = table(gpu).file
    try:
        if file is None or not file.exists():
            return False
        file.unlink()
    except OSError as error:
        raise IoErrorWithErrno(f"{error.errno}:tuning.clear: '{file}': {error.strerror}") from None
    return True


def _gpu(gpu: Gpu | int) -> Gpu:
    if isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, int) or isinstance(gpu, bool) or gpu < 0:
        raise invalid_argument("tuning", "gpu", "the index of a GPU, or one of info()'s", repr(gpu))
    gpus = info().gpus
    if gpu >= len(gpus):
        raise UnavailableError(f"tuning: expected a GPU of index {gpu}, got {len(gpus)} GPUs here")
    return gpus[gpu]


def _key(problem: Problem) -> str:
    return str(library.tuning_key(asdict(problem)))
