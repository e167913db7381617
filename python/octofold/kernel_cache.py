"""Compiled kernels: those that come with octofold, and those on disk, where operations keep what
they compile for a GPU.

>>> octofold.kernel_cache.warm([GemmProblem(4096, 7168, 2048)])  # without a GPU
>>> octofold.kernel_cache.entries()
"""

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._core.library import library
from ._core.progress import Progress, reporting

__all__ = [
    "CachedKernel",
    "GemmProblem",
    "ReadyKernel",
    "WarmReport",
    "clear",
    "entries",
    "folder",
    "ready",
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
    """What it is compiled for, such as "sm_90a"."""
    registers: int
    """Of a thread."""


@dataclass(frozen=True)
class ReadyKernel:
    """A kernel that comes with octofold, compiled when that was built."""

    bytes: int
    description: str
    architecture: str
    """What it is compiled for: "sm_90a"."""
    registers: int
    """Of a thread."""


@dataclass(frozen=True)
class GemmProblem:
    """A call of gemm() without its arrays, which are taken to be contiguous.

    m, n: at least 1. a, b: dtypes of the codes. c, bias: their dtypes, None: without.
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
    """What warm() did. Problems share kernels, so there are often far fewer of these."""

    compiled: int
    """Kernels that the cache did not have."""
    found: int
    """Kernels that it had."""
    ready: int
    """Kernels that come with octofold."""


def folder() -> Path | None:
    """OCTOFOLD_CACHE_DIR, else octofold in XDG_CACHE_HOME, else in ~/.cache.

    None where there is no such place: then nothing is kept.
    """
    text = str(library.kernel_cache_folder())
    return Path(text) if text else None


def entries() -> tuple[CachedKernel, ...]:
    """All files of the cache, newest first. Raises IoError if the folder cannot be read."""
    return tuple(
        CachedKernel(
            file=Path(fields["file"]),
            bytes=fields["bytes"],
            written=datetime.datetime.fromtimestamp(fields["written"]),
            fault=str(fields["fault"]),
            description=str(fields["description"]),
            architecture=str(fields["architecture"]),
            registers=fields["registers"],
        )
        for fields in library.list_kernel_cache()
    )


def ready() -> tuple[ReadyKernel, ...]:
    """Those that come with octofold, by description. Operations take these first: they need neither
    NVRTC nor the disk.

    None where octofold was built without them, or where OCTOFOLD_READY_KERNELS is 0.
    """
    return tuple(ReadyKernel(**fields) for fields in library.list_ready_kernels())


def clear() -> int:
    """Remove what the cache has written, and nothing else. Returns how many kernels went.

    Raises IoError where a file cannot be removed.
    """
    return int(library.clear_kernel_cache())


def warm(
    problems: Sequence[GemmProblem],
    architecture: str = "sm_90a",
    multiprocessors: int = 132,
    progress: Progress | None = None,
) -> WarmReport:
    """Compile the kernels of these products into the cache, as the first gemm() of each would where
    no table of measured choices has it (octofold.tuning), but for those that come with octofold.

    Needs NVRTC (`pip install nvidia-cuda-nvrtc`), no GPU and no driver.

    architecture: what to compile for.
    multiprocessors: of the GPU that the kernels will run on, which tiles depend on: 132 for H100
        (SXM) and H200; octofold.info() has that of a GPU at hand.
    progress: called with the kernels done so far and in all. What it raises ends the run and is
        raised here.

    All problems are checked before anything is compiled.
    Raises InvalidArgumentError that names the argument, UnsupportedError for an architecture
    without kernels, UnavailableError without NVRTC or a folder, IoError if the folder cannot be
    written.
    """
    fields = [dataclasses.asdict(problem) for problem in problems]
    with reporting(progress) as report_progress:
        report = library.warm_kernel_cache(fields, architecture, multiprocessors, report_progress)
    return WarmReport(**report)
