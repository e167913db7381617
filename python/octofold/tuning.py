"""Which kernels are the fastest on a GPU, as measured there: tables that gemm() follows.

>>> octofold.tuning.candidates(GemmProblem(64, 7168, 2048))  # what there is to measure
>>> octofold.tuning.table()                                  # what gemm() follows here

`octofold tune` measures and writes; docs/tuning.md tells the rest.
"""

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._core.errors import IoErrorWithErrno, UnavailableError, invalid_argument
from ._core.frameworks import Array
from ._core.library import library
from ._core.scaled_tensor import ScaledTensor
from ._core.streams import StreamLike, stream_handle
from ._info import Gpu, info
from .kernel_cache import GemmProblem

__all__ = ["Choice", "Table", "candidates", "clear", "gemm", "planned", "table", "write"]


@dataclass(frozen=True)
class Choice:
    """What was measured of a product."""

    problem: GemmProblem
    candidate: str
    """The name of what gemm() is to take: the fastest, one of candidates()."""
    microseconds: float
    planned_microseconds: float
    """Of planned(), in the same run."""


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
    """How many the table of this GPU has that comes with octofold: gemm() follows it where the
    other one has nothing."""


def candidates(problem: GemmProblem) -> tuple[str, ...]:
    """Names of the kernels that can compute a product on Hopper. Its sizes do not matter."""
    return tuple(map(str, library.gemm_candidates(dataclasses.asdict(problem), True, True, True)))


def planned(problem: GemmProblem, multiprocessors: int = 132) -> str:
    """The candidate that is reckoned to be the fastest of contiguous arrays on a Hopper GPU: what
    gemm() takes where no table has the product.

    multiprocessors: 132 of H100 (SXM) and H200.
    Raises as gemm() does for dtypes, scales and sizes.
    """
    return str(library.planned_gemm_candidate(dataclasses.asdict(problem), multiprocessors))


def gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    out: Array,
    candidate: str,
    fast_accumulation: bool = False,
    stream: StreamLike | None = None,
) -> None:
    """octofold.gemm(a, b, out=out) on a GPU by the candidate of this name, which is planned anew in
    each call: to be timed in a CUDA graph.

    a, b, out: torch tensors.
    stream: as in gemm(); None: torch's current one.
    Raises as gemm(); InvalidArgumentError lists the candidates where there is none of this name.
    """
    tensors = (a.data, a.scale, b.data, b.scale, None, None, b.channel_scale, out)
    options = (a.granularity, b.granularity, fast_accumulation)
    handle = None if stream is None else stream_handle("tuning.gemm", stream)
    library.gemm_by_candidate(*tensors, *options, handle, candidate)


def table(gpu: Gpu | int = 0) -> Table:
    """That of a GPU at hand (its index, or one of info()'s), as it is on disk now. A process reads
    it once, at its first product.

    Raises UnavailableError where there is no such GPU.
    """
    gpu = _gpu(gpu)
    fields = library.tuning_table(
        gpu.name, gpu.compute_major, gpu.compute_minor, gpu.multiprocessors
    )
    file = str(fields["file"])
    counts = int(fields["products"]), int(fields["shipped"])
    return Table(Path(file) if file else None, str(fields["fault"]), *counts)


def write(choices: Iterable[Choice], gpu: Gpu | int = 0) -> Path:
    """Put choices into the GPU's table, in place of what it has of the same products. Of a table
    that is not followed nothing is kept. The file is replaced as a whole, or left as it was.

    Returns the file. Raises IoError where it cannot be written, UnavailableError where there is no
    place for it or no such GPU.
    """
    gpu = _gpu(gpu)
    there = table(gpu)
    if there.file is None:
        raise UnavailableError(
            "tuning.write: expected a folder for tables, got none: name one in OCTOFOLD_CACHE_DIR, "
            "and leave OCTOFOLD_TUNING unset"
        )
    products = {} if there.fault or not there.products else _read(there.file)["products"]
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
    _replace(there.file, json.dumps(document, indent=1) + "\n")
    return there.file


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


def _key(problem: GemmProblem) -> str:
    return str(library.tuning_key(dataclasses.asdict(problem)))


def _read(file: Path) -> Any:
    return json.loads(file.read_text())


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise IoErrorWithErrno(f"{error.errno}:tuning.write: '{file}': {error.strerror}") from None
