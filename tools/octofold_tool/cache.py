"""octofold cache: compiled kernels on disk."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import octofold
from octofold import kernel_cache
from octofold.kernel_cache import CachedKernel, PrecompiledKernel

from . import gemm_options
from .report import ToolError, print_table, progress

Kernel: TypeAlias = CachedKernel | PrecompiledKernel

DESCRIPTION = """\
Kernels that common products need on an H100 or H200 come with octofold. Others are compiled when
they are first needed, and kept on disk, for all processes of a user. See what is there, remove it,
or compile kernels before anybody waits for them, on any machine: in a container image, say.

  octofold cache list
  octofold cache list --precompiled
  octofold cache warm --suite deepseek-v3 --arch sm_90a
  octofold cache clear

The folder is the environment variable OCTOFOLD_CACHE_DIR, else octofold in XDG_CACHE_HOME, else
in ~/.cache.
"""

WARM_DESCRIPTION = """\
Compile the kernels of matrix products into the cache, as the first call of each would where no
table of measured kernels has it (octofold tune).
Needs NVRTC (pip install nvidia-cuda-nvrtc), neither a GPU nor a driver. Many sizes share a kernel;
those that are there already, or come with octofold, are not compiled again.

  octofold cache warm --problem "gemm: m 4096, n 7168, k 2048"   for the GPU of this machine
  octofold cache warm --suite llama-70b --arch sm_90a            without one: for H100 and H200
  octofold cache warm --problems model.txt --arch sm_90a         those of a model (octofold tune)

A kernel depends on dtypes, scales, C and bias too: name them as your calls have them.
"""

# The number of multiprocessors of the H100 (SXM) and the H200.
HOPPER_MULTIPROCESSORS = 132


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "cache", help="compiled kernels: list, clear, compile in advance", description=DESCRIPTION
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="what is there",
        description="Show the compiled kernels, newest first, and files that cannot be used: "
        "damaged ones and another version's, which are replaced when their kernels are needed.",
    )
    listing.add_argument(
        "--precompiled", action="store_true", help="the precompiled kernels instead"
    )
    listing.add_argument("--json", action="store_true", help="print JSON instead")
    listing.set_defaults(run=run_list)
    actions.add_parser(
        "clear",
        help="remove all of it",
        description="Remove all that the cache has written, and nothing else in its folder. "
        "Programs that run keep what they have loaded.",
    ).set_defaults(run=run_clear)
    actions.add_parser(
        "path",
        help="where it is",
        description="Print the cache's folder, which need not exist yet.",
    ).set_defaults(run=run_path)
    add_warm_parser(actions)


def add_warm_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = actions.add_parser(
        "warm", help="compile in advance, without a GPU", description=WARM_DESCRIPTION
    )
    gemm_options.add_problems(parser)
    parser.add_argument(
        "--arch", metavar="ARCH", help="such as sm_90a (default: that of the GPU here)"
    )
    parser.add_argument(
        "--multiprocessors",
        metavar="COUNT",
        type=int,
        help="number of the GPU; tile sizes depend on it (default: those of the GPU here, or with "
        f"--arch those of H100 SXM and H200: {HOPPER_MULTIPROCESSORS})",
    )
    parser.set_defaults(run=run_warm)


def run_list(arguments: argparse.Namespace) -> None:
    of_octofold = arguments.precompiled
    kernels: Sequence[Kernel] = (
        kernel_cache.precompiled() if of_octofold else kernel_cache.entries()
    )
    if arguments.json:
        document: dict[str, object] = {} if of_octofold else {"folder": str(folder())}
        document["kernels"] = [dataclasses.asdict(kernel) for kernel in kernels]
        print(json.dumps(document, indent=2, default=str))
    elif not kernels:
        none = "octofold has no precompiled kernels"
        print(none if of_octofold else f"no kernels in {folder()}")
    else:
        rows = [row_of(kernel) for kernel in kernels]
        columns = ("kernel", "for", "registers", "kB", "written")[: len(rows[0])]
        count = f"{len(kernels)} {'kernels' if of_octofold else 'files'}"
        size = kilobytes(sum(kernel.bytes for kernel in kernels))
        totals = (count, "", "", size, "")[: len(columns)]
        title = "precompiled kernels" if of_octofold else str(folder())
        print_table(title, columns, rows, totals)


def row_of(kernel: Kernel) -> tuple[str, ...]:
    cells = kernel.description, kernel.architecture, str(kernel.registers), kilobytes(kernel.bytes)
    if not isinstance(kernel, CachedKernel):
        return cells
    written = f"{kernel.written:%Y-%m-%d %H:%M}"
    if not kernel.fault:
        return *cells, written
    fault = f"{kernel.file.name}: unusable: {kernel.fault}"
    return fault, kernel.architecture, "", cells[-1], written


def kilobytes(count: int) -> str:
    return f"{count / 1e3:.1f}"


def run_clear(arguments: argparse.Namespace) -> None:
    print(f"{kernel_cache.clear()} kernels removed from {folder()}")


def run_path(arguments: argparse.Namespace) -> None:
    print(folder())


def run_warm(arguments: argparse.Namespace) -> None:
    problems = gemm_options.problems_of(arguments)
    if not problems:
        raise ToolError("name what to compile: --problem TEXT, --problems FILE or --suite")
    architecture, multiprocessors = target(arguments)
    with progress("compiling kernels") as advance:
        report = kernel_cache.warm(problems, architecture, multiprocessors, advance)
    print(
        f"{report.compiled + report.found} kernels for {architecture} in {folder()}: "
        f"{report.compiled} compiled, {report.found} there before"
    )
    if report.precompiled:
        print(f"{report.precompiled} more are precompiled")


def target(arguments: argparse.Namespace) -> tuple[str, int]:
    """Architecture and number of multiprocessors: as asked for, else those of the GPU here."""
    architecture, multiprocessors = arguments.arch, arguments.multiprocessors
    if architecture is None:
        gpu = first_gpu()
        architecture = f"sm_{gpu.compute_major}{gpu.compute_minor}"
        if gpu.compute_major == 9:
            architecture += "a"
        default = gpu.multiprocessors
    else:
        default = HOPPER_MULTIPROCESSORS
    return architecture, default if multiprocessors is None else multiprocessors


def first_gpu() -> octofold.Gpu:
    info = octofold.info()
    if not info.gpus:
        reason = "the driver shows none" if info.driver.available else info.driver.detail
        raise ToolError(f"there is no GPU here to compile for, name one with --arch: {reason}")
    return info.gpus[0]


def folder() -> Path:
    path = kernel_cache.folder()
    if path is None:
        raise ToolError("there is no folder to keep kernels in: name one in OCTOFOLD_CACHE_DIR")
    return path
