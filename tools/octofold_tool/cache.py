"""octofold cache: compiled kernels on disk."""

import argparse
import dataclasses
import json
from pathlib import Path

import octofold
from octofold import kernel_cache
from octofold.kernel_cache import CachedKernel, GemmProblem

from . import gemm_options
from .gemm_options import OUT_DTYPES, SUITES
from .report import ToolError, print_table, progress

HELP = "compiled kernels: list, clear, compile in advance"

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
Compile the kernels of matrix products into the cache, as the first product of each shape would
where no table of measured kernels has it (octofold tune).
Needs NVRTC (pip install nvidia-cuda-nvrtc), neither a GPU nor a driver. Many shapes share a kernel;
those that are there already, or come with octofold, are not compiled again.

  octofold cache warm --shape 4096,7168,2048                        for the GPU of this machine
  octofold cache warm --suite llama-70b --arch sm_90a               without one: for H100 and H200
  octofold cache warm --shape 64,8192,8192 --granularity channel,channel --bias bfloat16 \\
    --arch sm_90a

A kernel depends on dtypes, scales, C and bias too: name them as your calls have them. Matrices are
taken to be contiguous and aligned to 16 bytes, as allocators give them.
"""

# The number of multiprocessors of the H100 (SXM) and the H200.
HOPPER_MULTIPROCESSORS = 132


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "cache",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        "warm",
        help="compile in advance, without a GPU",
        description=WARM_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gemm_options.add_shapes(parser, "a named set of shapes", required=True)
    gemm_options.add_kind(parser)
    for option in ("c", "bias"):
        parser.add_argument(
            f"--{option}",
            metavar="DTYPE",
            choices=OUT_DTYPES,
            help=f"with '{option}' of this dtype: the output's, or float32 (default: without)",
        )
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
    if arguments.precompiled:
        list_ready(as_json=arguments.json)
    else:
        list_cache(as_json=arguments.json)


def list_ready(*, as_json: bool) -> None:
    kernels = kernel_cache.precompiled()
    if as_json:
        print(json.dumps({"kernels": [dataclasses.asdict(kernel) for kernel in kernels]}, indent=2))
    elif not kernels:
        print("octofold has no precompiled kernels")
    else:
        columns = ("kernel", "for", "registers", "kB")
        rows = [
            (
                kernel.description,
                kernel.architecture,
                str(kernel.registers),
                kilobytes(kernel.bytes),
            )
            for kernel in kernels
        ]
        total = sum(kernel.bytes for kernel in kernels)
        totals = (f"{len(kernels)} kernels", "", "", kilobytes(total))
        print_table("precompiled kernels", columns, rows, totals)


def kilobytes(count: int) -> str:
    return f"{count / 1e3:.1f}"


def list_cache(*, as_json: bool) -> None:
    kernels = kernel_cache.entries()
    if as_json:
        document = {"folder": str(folder()), "kernels": [fields_of(kernel) for kernel in kernels]}
        print(json.dumps(document, indent=2))
    elif not kernels:
        print(f"no kernels in {folder()}")
    else:
        show(kernels)


def fields_of(kernel: CachedKernel) -> dict[str, object]:
    return {
        "file": str(kernel.file),
        "bytes": kernel.bytes,
        "written": kernel.written.isoformat(timespec="seconds"),
        "fault": kernel.fault,
        "description": kernel.description,
        "architecture": kernel.architecture,
        "registers": kernel.registers,
    }


def show(kernels: tuple[CachedKernel, ...]) -> None:
    columns = ("kernel", "for", "registers", "kB", "written")
    rows = []
    for kernel in kernels:
        usable = not kernel.fault
        rows.append(
            (
                kernel.description if usable else f"{kernel.file.name}: unusable: {kernel.fault}",
                kernel.architecture,
                str(kernel.registers) if usable else "",
                kilobytes(kernel.bytes),
                f"{kernel.written:%Y-%m-%d %H:%M}",
            )
        )
    total = sum(kernel.bytes for kernel in kernels)
    totals = (f"{len(kernels)} files", "", "", kilobytes(total), "")
    print_table(str(folder()), columns, rows, totals)


def run_clear(arguments: argparse.Namespace) -> None:
    print(f"{kernel_cache.clear()} kernels removed from {folder()}")


def run_path(arguments: argparse.Namespace) -> None:
    print(folder())


def run_warm(arguments: argparse.Namespace) -> None:
    architecture, multiprocessors = target(arguments)
    a, b = arguments.dtype
    a_granularity, b_granularity = arguments.granularity
    problems = [
        GemmProblem(
            m,
            n,
            k,
            a,
            b,
            arguments.out_dtype,
            a_granularity,
            b_granularity,
            c=arguments.c,
            bias=arguments.bias,
            fast_accumulation=arguments.fast_accumulation,
        )
        for m, n, k in arguments.shape or SUITES[arguments.suite]
    ]
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
