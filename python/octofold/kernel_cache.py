"""Compiled kernels: the precompiled ones of octofold, and those on disk, where operations keep
what they compile for a GPU.

>>> octofold.kernel_cache.warm([GemmProblem(4096, 7168, 2048)])  # without a GPU
>>> octofold.kernel_cache.entries()
"""

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._core.files import path_of
from ._core.library import Progress, library, reporting

__all__ = [
    "CachedKernel",
    "GemmProblem",
    "PrecompiledKernel",
    "WarmReport",
    "clear",
    "entries",
    "folder",
    "precompiled",
    "warm",
]


@dataclass(frozen=True)
class CachedKernel:
    """A file of the cache."""

    file: Path
    bytes: int
    written: datetime.datetime
    """Local time."""
    fault: str
    """Why the file cannot be used: it is replaced when its kernel is next needed. Empty for a
    usable one; of an unusable one nothing below is known."""
    description: str
    architecture: str
    """The architecture that it is compiled for, such as "sm_90a"."""
    registers: int
    """The number of registers of a thread."""


@dataclass(frozen=True)
class PrecompiledKernel:
    """A precompiled kernel: it comes with octofold, compiled when that was built."""

    bytes: int
    description: str
    architecture: str
    """The architecture that it is compiled for: "sm_90a"."""
    registers: int
    """The number of registers of a thread."""


@dataclass(frozen=True)
class GemmProblem:
    """A call of gemm() without its arrays, which are assumed to be contiguous.

    m, n: at least 1. a, b: dtypes of the codes. c, bias: their dtypes; None: without.
    b_channel_scale: whether b has two-level scales.
    """

    m: int
    n: int
    k: int
    a: str = "e4m3"
    b: str = "e4m3"
    out: str = "bfloat16"
    a_granularity: str = "1x128"
    b_granularity: str = "128x128"
    c: str | None = None
    bias: str | None = None
    fast_accumulation: bool = False
    b_channel_scale: bool = False


@dataclass(frozen=True)
class WarmReport:
    """The result of warm(). Problems share kernels, so there are often far fewer kernels."""

    compiled: int
    """Kernels that the cache did not have."""
    found: int
    """Kernels that it had."""
    precompiled: int
    """Kernels that come with octofold."""


def folder() -> Path | None:
    """The folder of the cache: OCTOFOLD_CACHE_DIR, else octofold in XDG_CACHE_HOME, else in
    ~/.cache.

    None where there is no such place; then nothing is kept.
    """
    name = library.kernel_cache_folder()
    return path_of(name) if name else None


def entries() -> tuple[CachedKernel, ...]:
    """List all files of the cache, newest first. A folder that is not used, because others than
    this user and root may have written to it, stands alone, with the reason as its `fault`.

    Raises IoError if the folder cannot be read.
    """
    return tuple(
        CachedKernel(
            file=path_of(fields["file"]),
            bytes=fields["bytes"],
            written=datetime.datetime.fromtimestamp(fields["written"]),
            fault=str(fields["fault"]),
            description=str(fields["description"]),
            architecture=str(fields["architecture"]),
            registers=fields["registers"],
        )
        for fields in library.list_kernel_cache()
    )


def precompiled() -> tuple[PrecompiledKernel, ...]:
    """List the precompiled kernels, by description. Operations take these first: they need neither
    NVRTC nor the disk.

    The list is empty if octofold was built without them, or if OCTOFOLD_PRECOMPILED_KERNELS is 0.
    """
    return tuple(PrecompiledKernel(**fields) for fields in library.list_precompiled_kernels())


def clear() -> int:
    """Remove what the cache has written, and nothing else. Returns the number of kernels removed.

    Raises IoError if a file cannot be removed.
    """
    return int(library.clear_kernel_cache())


def warm(
    problems: Sequence[GemmProblem],
    architecture: str = "sm_90a",
    multiprocessors: int = 132,
    progress: Progress | None = None,
) -> WarmReport:
    """Compile the kernels of these products into the cache, as the first gemm() of each would if no
    tuned table named another (octofold.tuning). Precompiled kernels are left out.

    This needs NVRTC (`pip install nvidia-cuda-nvrtc`), but neither a GPU nor a driver.

    architecture: the architecture to compile for.
    multiprocessors: the number of the GPU on which the kernels will run; the best tiles depend on
        it. 132 is that of H100 (SXM) and H200; octofold.info() has that of a GPU at hand.
    progress: called with the kernels done so far and in all. An exception that it raises ends the
        run and is raised here.

    All problems are checked before anything is compiled.
    Raises InvalidArgumentError, which names the argument, UnsupportedError for an architecture
    without kernels, UnavailableError without NVRTC or a folder, and IoError if the folder cannot be
    written.
    """
    fields = [dataclasses.asdict(problem) for problem in problems]
    with reporting(progress) as report_progress:
        report = library.warm_kernel_cache(fields, architecture, multiprocessors, report_progress)
    return WarmReport(**report)
