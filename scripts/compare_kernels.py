#!/usr/bin/env python3
"""Compares what the run-time compiler makes of the GEMM kernels of two revisions: registers, spills
and instructions.

    scripts/compare_kernels.py 0d77490 .              git revisions, or folders
    scripts/compare_kernels.py --filter "1x128, BFloat16" main HEAD

Needs no GPU: NVRTC (of the wheel nvidia-cuda-nvrtc, or the library that OCTOFOLD_NVRTC names)
compiles for sm_90a with the product's options. The kernels are those of the planner's tilings; each
revision's own headers say which of them can be built and how many stages fit, so a host compiler
(CXX, or c++) is needed too. What was found is kept in build/kernel_bodies, by the sources' hash.

The exit code is 1 if a kernel is there in one revision only, has other stages or another count of
matrix products, or is over a bound: 4 registers or 2 % of the instructions more, or any more stack
or spills. Kernels that are shorter by 2 % or more are counted, and are no fault.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernel_body import Body, body_of

ROOT = Path(__file__).resolve().parents[1]
REGISTERS_BOUND = 4
INSTRUCTIONS_BOUND = 0.02

# ---- What is compared, in words that hold for every revision ------------------------------------

# Granularities of A and B, by their enumerators in octofold::Granularity.
PAIRS = (
    ("kTensor", "kTensor"),
    ("kChannel", "kChannel"),
    ("kBlock1x128", "kBlock128x128"),
    ("kBlock1x128", "kBlock1x128"),
)
# Rows and columns of a tile, consumer warpgroups, cluster along rows and columns, ping-pong,
# wait-ahead.
TILINGS = (
    (256, 128, 2, 1, 2, False, True),
    (256, 128, 2, 1, 2, True, False),
    (256, 128, 2, 1, 1, False, True),
    (256, 128, 2, 1, 1, False, False),
    (128, 192, 2, 2, 1, False, True),
    (128, 192, 2, 2, 1, True, False),
    (128, 160, 2, 1, 1, False, True),
    (128, 128, 2, 1, 2, False, True),
    (128, 128, 2, 1, 1, False, True),
    (128, 64, 2, 1, 1, False, True),
    (128, 32, 2, 1, 1, False, True),
    (64, 128, 1, 1, 1, False, False),
    (64, 64, 1, 1, 1, False, False),
    (64, 32, 1, 1, 1, False, False),
    (64, 16, 1, 1, 1, False, False),
)
MOST_STAGES = 8
# The output's dtype, whether operands come by TMA and the output goes by it, and whether C and a
# bias, both FP32, are added.
MOVES = (
    ("kBFloat16", True, True, False),
    ("kFloat32", True, False, False),
    ("kFloat32", True, False, True),
    ("kBFloat16", False, False, False),
)
ADDEND = 2  # FP32


@dataclass(frozen=True)
class Kernel:
    pair: tuple[str, str]
    promote: bool
    tiling: tuple[int, int, int, int, int, bool, bool]
    moves: tuple[str, bool, bool, bool]

    def __str__(self) -> str:
        rows, columns, warpgroups, cluster_rows, cluster_columns, ping_pong, ahead = self.tiling
        out, load_by_tma, store_by_tma, adds = self.moves
        words = [
            f"{rows}x{columns}/{warpgroups} cluster {cluster_rows}x{cluster_columns}",
            "ping-pong" if ping_pong else "wait-ahead" if ahead else "",
            "·".join(name.removeprefix("k") for name in self.pair),
            "" if self.promote else "fast",
            out.removeprefix("k"),
            "" if load_by_tma else "threads load",
            "" if store_by_tma else "direct",
            "+ C + bias" if adds else "",
        ]
        return ", ".join(filter(None, words))


def kernels() -> list[Kernel]:
    found: dict[Kernel, None] = {}  # a set that keeps its order
    for pair, promote, tiling, moves in itertools.product(PAIRS, (True, False), TILINGS, MOVES):
        if promote:
            found[Kernel(pair, True, tiling, moves)] = None
        elif pair[0] != "kBlock1x128":  # scales that vary along K act on partial sums
            found[Kernel(pair, False, (*tiling[:5], False, False), moves)] = None
    return list(found)


# ---- Dialects: the same kernel as each revision writes it ---------------------------------------


def value(type_name: str, **fields: int | str) -> str:
    """A C++ value. Numbers are cast to their field's type, which enumerators need."""
    parts = (
        f".{field} = {x if isinstance(x, str) else f'decltype({type_name}::{field})({int(x)})'}"
        for field, x in fields.items()
    )
    return f"{type_name}{{{', '.join(parts)}}}"


@dataclass(frozen=True)
class Dialect:
    header: str  # which revisions speak it: those that have this one
    consumer_warpgroups: str  # what it calls them
    wait_ahead: str
    kernel: str = "kernels/sm90/gemm.h"

    def value(self, kernel: Kernel, stages: int) -> str:
        rows, columns, warpgroups, cluster_rows, cluster_columns, ping_pong, wait_ahead = (
            kernel.tiling
        )
        out, load_by_tma, store_by_tma, adds = kernel.moves
        a, b = (
            value(
                "octofold::Operand",
                type="octofold::DType::kE4M3",
                scales=f"octofold::Granularity::{scales}",
            )
            for scales in kernel.pair
        )
        form = value(
            "octofold::GemmForm",
            a=a,
            b=b,
            out=f"octofold::DType::{out}",
            c=adds and ADDEND,
            bias=adds and ADDEND,
            fast_accumulation=not kernel.promote,
        )
        fields = {
            "form": form,
            "tile_rows": rows,
            "tile_columns": columns,
            self.consumer_warpgroups: warpgroups,
            "stages": stages,
            "cluster_rows": cluster_rows,
            "cluster_columns": cluster_columns,
            "load": not load_by_tma,
            "store": not store_by_tma,
            "order": ping_pong,
            self.wait_ahead: wait_ahead,
        }
        return value("octofold::config::Sm90GemmConfig", **fields)


DIALECTS = (
    Dialect(
        "kernels/sm90/config/checks.h",
        "consumer_warpgroups",
        "wait_ahead",
        "kernels/sm90/kernel.h",
    ),
    Dialect("kernels/config/sm90_gemm.h", "math_warpgroups", "early_wait"),
    Dialect("kernels/sm90/config/gemm.h", "consumer_warpgroups", "wait_ahead"),
)


@dataclass(frozen=True)
class Revision:
    name: str
    folder: Path

    @property
    def dialect(self) -> Dialect:
        for dialect in DIALECTS:
            if (self.folder / dialect.header).exists():
                return dialect
        sys.exit(f"{self.name}: its configurations are written in no dialect that is known here")

    def headers(self) -> dict[str, str]:
        """By the names that they include each other by."""
        kernels = self.folder.glob("kernels/**/*.h")
        public = self.folder.glob("include/octofold/*.h")
        files = {path.relative_to(self.folder).as_posix(): path for path in kernels}
        files |= {path.relative_to(self.folder / "include").as_posix(): path for path in public}
        return {name: files[name].read_text() for name in sorted(files)}

    def expressions(self, wanted: list[Kernel]) -> dict[Kernel, tuple[int, str]]:
        """Stages and name expression of each kernel that can be built, by the revision's own
        checks and layout of shared memory."""
        dialect = self.dialect
        calls = "".join(f"  fit({dialect.value(kernel, MOST_STAGES)});\n" for kernel in wanted)
        source = f"""#include "{dialect.header}"
#include <cstdio>
template <typename Config>
void fit(Config config) {{
  using namespace octofold::config;
  while (config.stages > 2 && Sm90SmemLayout(config).total > kSm90SharedMemory) --config.stages;
  std::printf("%d\\n", config.invalid_reason() == nullptr ? config.stages : 0);
}}
int main() {{
{calls}}}
"""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "fit.cpp").write_text(source)
            compiler = os.environ.get("CXX", "c++")
            options = ["-std=c++20", f"-I{self.folder}", f"-I{self.folder / 'include'}"]
            command = [compiler, *options, "fit.cpp", "-o", "fit"]
            subprocess.run(command, cwd=folder, check=True)
            output = subprocess.run(
                [Path(folder) / "fit"], capture_output=True, text=True, check=True
            ).stdout
        return {
            kernel: (int(stages), f"octofold::gemm_kernel<{dialect.value(kernel, int(stages))}>")
            for kernel, stages in zip(wanted, output.split(), strict=True)
            if int(stages) > 0
        }


def unpacked(revision: str, folder: Path) -> Revision:
    """The headers of a git revision in `folder`; a path is taken as it is."""
    if Path(revision).is_dir():
        return Revision(revision, Path(revision).resolve())
    command = ["git", "archive", revision, "kernels", "include"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return Revision(revision, folder)


# ---- The comparison -----------------------------------------------------------------------------


def verdict(old: Body, new: Body) -> str:
    """Names what is over a bound; empty if nothing is."""
    over = []
    if new.products != old.products:
        over.append(f"{old.products} and {new.products} products")
    if new.registers - old.registers > REGISTERS_BOUND:
        over.append("registers")
    if new.instructions > (1 + INSTRUCTIONS_BOUND) * old.instructions:
        over.append("instructions")
    if new.memory_bytes > old.memory_bytes:
        over.append("stack or spills")
    return ", ".join(over)


Built = tuple[int, Body | str]  # stages, and what became of it or why it was not compiled


def built(revision: Revision, wanted: list[Kernel], processes: int) -> dict[Kernel, Built]:
    """Compiles each kernel that the revision's checks allow."""
    expressions = revision.expressions(wanted)
    compile_ = partial(body_of, revision.headers(), revision.dialect.kernel)
    with multiprocessing.Pool(processes) as pool:
        texts = [expression for _, expression in expressions.values()]
        bodies = pool.map(compile_, texts, chunksize=1)
    stages = [stages for stages, _ in expressions.values()]
    return dict(zip(expressions, zip(stages, bodies, strict=True), strict=True))


@dataclass(frozen=True)
class Line:
    figures: str
    ratio: float  # of instructions, new over old
    complaint: str


def line(old: Built | None, new: Built | None) -> Line:
    if old is None or new is None:
        return Line("", 1.0, f"{'new' if old is None else 'old'} only")
    (old_stages, left), (new_stages, right) = old, new
    if isinstance(left, str) or isinstance(right, str):
        reason = left if isinstance(left, str) else right
        return Line("", 1.0, f"not compiled: {reason}")
    ratio = right.instructions / left.instructions
    figures = (
        f"{left.registers:>5} {right.registers:>5} {left.memory_bytes:>6} {right.memory_bytes:>6} "
        f"{left.instructions:>7} {right.instructions:>7} {ratio:>6.3f}"
    )
    complaints = [verdict(left, right)]
    if old_stages != new_stages:
        complaints.append(f"{old_stages} and {new_stages} stages")
    return Line(figures, ratio, ", ".join(filter(None, complaints)))


def compare(old: Revision, new: Revision, wanted: list[Kernel], processes: int) -> bool:
    """Prints the table; whether all is within the bounds."""
    old_bodies, new_bodies = (built(revision, wanted, processes) for revision in (old, new))
    print(f"{'registers':>11} {'stack+spills':>13} {'instructions':>15}  ratio  kernel")
    lines = []
    for kernel in wanted:
        if kernel in old_bodies or kernel in new_bodies:
            found = line(old_bodies.get(kernel), new_bodies.get(kernel))
            lines.append(found)
            complaint = f"  <-- {found.complaint}" if found.complaint else ""
            print(f"{found.figures:>48}  {kernel}{complaint}")
    if not lines:
        sys.exit("no kernel is to be compared")
    bad = sum(bool(found.complaint) for found in lines)
    shorter = sum(found.ratio <= 1 - INSTRUCTIONS_BOUND for found in lines)
    longest = max(found.ratio for found in lines)
    print(
        f"{len(lines)} kernels: {bad} over a bound; {shorter} shorter by {INSTRUCTIONS_BOUND:.0%} "
        f"or more; most instructions {longest:.3f} of what they were"
    )
    return bad == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a git revision or a folder")
    parser.add_argument("new", help="likewise")
    parser.add_argument("--filter", default="", help="only kernels whose description contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    wanted = [kernel for kernel in kernels() if arguments.filter in str(kernel)]
    with tempfile.TemporaryDirectory() as folder:
        old, new = (
            unpacked(revision, Path(folder) / side)
            for side, revision in (("old", arguments.old), ("new", arguments.new))
        )
        return 0 if compare(old, new, wanted, arguments.processes) else 1


if __name__ == "__main__":
    sys.exit(main())
