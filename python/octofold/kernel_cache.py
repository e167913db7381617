"""Compiled kernels: the precompiled ones of octofold, and those on disk, where operations keep
what they compile for a GPU.

>>> octofold.kernel_cache.warm(["gemm: m 4096, n 7168, k 2048"])  # without a GPU
>>> octofold.kernel_cache.entries()
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._core.files import path_of
from ._core.library import Progress, library, reporting
from ._core.records import record

__all__ = [
    "CachedKernel",
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
        record(CachedKernel, {**one, "written": datetime.datetime.fromtimestamp(one["written"])})
        for one in library.list_kernel_cache()
    )


def precompiled() -> tuple[PrecompiledKernel, ...]:
    """List the precompiled kernels, by description. Operations take these first: they need neither
    NVRTC nor the disk.

    The list is empty if octofold was built without them, or if OCTOFOLD_PRECOMPILED_KERNELS is 0.
    """
    return tuple(record(PrecompiledKernel, one) for one in library.list_precompiled_kernels())


def clear() -> int:
    """Remove what the cache has written, and nothing else. Returns the number of kernels removed.

    Raises IoError if a file cannot be removed.
    """
    return int(library.clear_kernel_cache())


def warm(
    problems: Sequence[str],
    architecture: str = "sm_90a",
    multiprocessors: int = 132,
    progress: Progress | None = None,
) -> WarmReport:
    """Compile the kernels of these products into the cache, as the first call of each would if no
    tuned table named another. Precompiled kernels are left out.

    This needs NVRTC (`pip install nvidia-cuda-nvrtc`), but neither a GPU nor a driver.

    problems: texts, such as octofold.tuning.recording() gives them (docs/tuning.md).
    architecture: the architecture to compile for.
    multiprocessors: the number of the GPU on which the kernels will run; the best tiles depend on
        it. 132 is that of H100 (SXM) and H200; octofold.info() has that of a GPU at hand.
    progress: called with the kernels done so far and in all. An exception that it raises ends the
        run and is raised here.

    All problems are checked before anything is compiled.
    Raises InvalidArgumentError, which names the phrase of a text or the argument, UnsupportedError
    for an architecture without kernels, UnavailableError without NVRTC or a folder, and IoError if
    the folder cannot be written.
    """
    with reporting(progress) as report_progress:
        report = library.warm_kernel_cache(
            list(problems), architecture, multiprocessors, report_progress
        )
    return record(WarmReport, report)
