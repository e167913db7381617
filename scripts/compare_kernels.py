#!/usr/bin/env python3
"""Compares what the run-time compiler makes of the GEMM kernels of two revisions: registers, spills
and instructions.

    scripts/compare_kernels.py 0d77490 .              git revisions, or folders
    scripts/compare_kernels.py --filter "1x128, bfloat16" main HEAD

Needs no GPU: NVRTC (of the wheel nvidia-cuda-nvrtc, or the library that OCTOFOLD_NVRTC names)
compiles for sm_90a with the product's options. The kernels are those of the planner's tilings; each
revision's own headers say which of them can be built and how many stages fit, so a host compiler
(CXX, or c++) is needed too. What was found is kept in build/compare_kernels, by the sources' hash.

The exit code is 1 if a kernel is there in one revision only, if its stages differ, or if it is over
a bound: 4 registers or 2 % of the instructions, more or fewer; or more stack or spills.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import io
import itertools
import json
import multiprocessing
import os
import re
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "compare_kernels"
ARCHITECTURE = "sm_90a"
KERNEL_HEADER = "kernels/sm90/gemm.h"
REGISTERS_BOUND = 4
INSTRUCTIONS_BOUND = 0.02

# ---- What is compared, in words that hold for every revision ------------------------------------

DTYPES = ("float32", "float16", "bfloat16", "e4m3", "e5m2")
GRANULARITIES = ("tensor", "channel", "1x128", "128x128")
PAIRS = (("tensor", "tensor"), ("channel", "channel"), ("1x128", "128x128"), ("1x128", "1x128"))
# Rows and columns of a tile, math warpgroups, cluster along rows and columns, ordered, early wait.
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
    ("bfloat16", True, True, False),
    ("float32", True, False, False),
    ("float32", True, False, True),
    ("bfloat16", False, False, False),
)
ADDEND = 2  # FP32


@dataclass(frozen=True)
class Kernel:
    pair: tuple[str, str]
    promote: bool
    tiling: tuple[int, int, int, int, int, bool, bool]
    moves: tuple[str, bool, bool, bool]

    def __str__(self) -> str:
        rows, columns, warpgroups, cluster_rows, cluster_columns, ordered, early = self.tiling
        out, load_by_tma, store_by_tma, adds = self.moves
        words = [
            f"{rows}x{columns}/{warpgroups} cluster {cluster_rows}x{cluster_columns}",
            "ordered" if ordered else "early" if early else "",
            "·".join(self.pair),
            "" if self.promote else "fast",
            out,
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
        elif pair[0] != "1x128":  # scales that vary along K act on partial sums
            found[Kernel(pair, False, (*tiling[:5], False, False), moves)] = None
    return list(found)


# ---- Dialects: the same kernel as each revision writes it ---------------------------------------


def value(type_name: str, **fields: int | str) -> str:
    """A C++ value. Numbers are cast to their field's type, which enumerators need."""
    name = f"octofold::config::{type_name}"
    parts = (
        f".{field} = {x if isinstance(x, str) else f'decltype({name}::{field})({int(x)})'}"
        for field, x in fields.items()
    )
    return f"{name}{{{', '.join(parts)}}}"


def value_by_pair(kernel: Kernel, stages: int) -> str:
    """A and B, and one enumerator for the pair of their granularities."""
    rows, columns, warpgroups, cluster_rows, cluster_columns, ordered, early = kernel.tiling
    out, load_by_tma, store_by_tma, adds = kernel.moves
    return value(
        "GemmConfig",
        out=DTYPES.index(out),
        scaling=PAIRS.index(kernel.pair),
        c=adds and ADDEND,
        bias=adds and ADDEND,
        promote=kernel.promote,
        tile_m=rows,
        tile_n=columns,
        math_warpgroups=warpgroups,
        stages=stages,
        cluster_m=cluster_rows,
        cluster_n=cluster_columns,
        load=not load_by_tma,
        store=not store_by_tma,
        order=ordered,
        early_wait=early,
    )


def value_by_operand(kernel: Kernel, stages: int) -> str:
    """The instruction's rows and columns, each with a granularity of its own."""
    rows, columns, warpgroups, cluster_rows, cluster_columns, ordered, early = kernel.tiling
    out, load_by_tma, store_by_tma, adds = kernel.moves
    row_operand, column_operand = (
        value("Operand", type=DTYPES.index("e4m3"), scales=GRANULARITIES.index(granularity))
        for granularity in kernel.pair
    )
    return value(
        "Sm90GemmConfig",
        rows=row_operand,
        columns=column_operand,
        out=DTYPES.index(out),
        c=adds and ADDEND,
        bias=adds and ADDEND,
        promote=kernel.promote,
        tile_rows=rows,
        tile_columns=columns,
        math_warpgroups=warpgroups,
        stages=stages,
        cluster_rows=cluster_rows,
        cluster_columns=cluster_columns,
        load=not load_by_tma,
        store=not store_by_tma,
        order=ordered,
        early_wait=early,
    )


# By the header that a revision has.
DIALECTS = {
    "kernels/config/gemm_config.h": value_by_pair,
    "kernels/config/sm90_gemm.h": value_by_operand,
}


@dataclass(frozen=True)
class Revision:
    name: str
    folder: Path

    @property
    def config_header(self) -> str:
        for header in DIALECTS:
            if (self.folder / header).exists():
                return header
        sys.exit(f"{self.name}: none of {', '.join(DIALECTS)}: a dialect for it has to be written")

    def headers(self) -> dict[str, str]:
        """By the names that they include each other by."""
        files = {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.glob("kernels/**/*.h"))
        }
        vocabulary = self.folder / "include" / "octofold" / "vocabulary.h"
        if vocabulary.exists():
            files["octofold/vocabulary.h"] = vocabulary
        return {name: path.read_text() for name, path in files.items()}

    def expressions(self, wanted: list[Kernel]) -> dict[Kernel, tuple[int, str]]:
        """Stages and name expression of each kernel that can be built, by the revision's own
        checks and layout of shared memory."""
        dialect = DIALECTS[self.config_header]
        calls = "".join(f"  fit({dialect(kernel, MOST_STAGES)});\n" for kernel in wanted)
        source = f"""#include "{self.config_header}"
#include <cstdio>
template <typename Config>
void fit(Config config) {{
  using namespace octofold::config;
  while (config.stages > 2 && SmemLayout(config).total > kSharedMemoryLimit) --config.stages;
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
            kernel: (int(stages), f"octofold::gemm_kernel<{dialect(kernel, int(stages))}>")
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


# ---- What the compiler makes of a kernel --------------------------------------------------------


@dataclass(frozen=True)
class Body:
    registers: int
    memory_bytes: int  # stack, and stores and loads of spilled registers
    instructions: int


@cache
def product_options() -> list[str]:
    text = (ROOT / "src" / "jit" / "nvrtc.cpp").read_text()
    listed = re.search(r"kOptions\[\] = \{(.*?)\};", text, re.DOTALL)
    assert listed is not None
    return re.findall(r'"(.*?)"', listed[1])


@cache
def nvrtc_file() -> str:
    if chosen := os.environ.get("OCTOFOLD_NVRTC"):
        return chosen
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia and nvidia.submodule_search_locations) or []:
        for file in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return str(file)
    sys.exit("no NVRTC: `pip install nvidia-cuda-nvrtc`, or name the file in OCTOFOLD_NVRTC")


def check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(nvrtc.nvrtcGetErrorString(result).decode())


def strings(texts: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def compiled(headers: dict[str, str], expression: str) -> tuple[bytes, str]:
    """The cubin and the compiler's log."""
    nvrtc = ctypes.CDLL(nvrtc_file())
    program = ctypes.c_void_p()
    source = f'#include "{KERNEL_HEADER}"\n'.encode()
    texts, names = strings(list(headers.values())), strings(list(headers))
    reference = ctypes.byref(program)
    check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(reference, source, b"kernel.cu", len(headers), texts, names),
    )
    check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()))
    options = [f"--gpu-architecture={ARCHITECTURE}", *product_options()]
    result = nvrtc.nvrtcCompileProgram(program, len(options), strings(options))
    log = content(nvrtc, program, "ProgramLog").decode()
    if result != 0:
        raise RuntimeError(f"{expression}:\n{log}")
    cubin = content(nvrtc, program, "CUBIN")
    check(nvrtc, nvrtc.nvrtcDestroyProgram(reference))
    return cubin, log


def content(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def instructions(cubin: bytes) -> int:
    """Of all functions, 16 bytes each, without the NOPs that fill up a section."""
    nop = 0x118  # the low 9 bits of the first word, as tests/cpp/support/sass.h reads them
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names_index = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * i) for i in range(count)]
    names = sections[names_index][4]
    total = 0
    for name, _, _, _, offset, size in sections:
        if not cubin[names + name :].startswith(b".text."):
            continue
        words = struct.iter_unpack("<QQ", cubin[offset : offset + size])
        operations = [word & 0x1FF for word, _ in words]
        while operations and operations[-1] == nop:
            operations.pop()
        total += len(operations)
    return total


def body(task: tuple[dict[str, str], str]) -> Body:
    """From the cache, or compiled."""
    headers, expression = task
    key = json.dumps([headers, expression, ARCHITECTURE, product_options(), nvrtc_file()])
    entry = CACHE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    if entry.exists():
        return Body(**json.loads(entry.read_text()))
    cubin, log = compiled(headers, expression)
    memory = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
    )
    registers = re.search(r"Used (\d+) registers", log)
    if memory is None or registers is None:
        raise RuntimeError(f"the compiler's log says nothing of registers and spills:\n{log}")
    found = Body(int(registers[1]), sum(map(int, memory.groups())), instructions(cubin))
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = entry.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(found)))
    unfinished.rename(entry)
    return found


# ---- The comparison -----------------------------------------------------------------------------


def verdict(old: Body, new: Body) -> str:
    """What is over a bound; empty if nothing is."""
    over = []
    if abs(new.registers - old.registers) > REGISTERS_BOUND:
        over.append("registers")
    if abs(new.instructions - old.instructions) > INSTRUCTIONS_BOUND * old.instructions:
        over.append("instructions")
    if new.memory_bytes > old.memory_bytes:
        over.append("stack or spills")
    return ", ".join(over)


def compare(old: Revision, new: Revision, wanted: list[Kernel], processes: int) -> bool:
    """Prints the table; whether all is within the bounds."""
    expressions = [revision.expressions(wanted) for revision in (old, new)]
    tasks = {
        (side, kernel): (revision.headers(), expression)
        for side, revision in enumerate((old, new))
        for kernel, (_, expression) in expressions[side].items()
    }
    with multiprocessing.Pool(processes) as pool:
        bodies = dict(zip(tasks, pool.map(body, tasks.values(), chunksize=1), strict=True))
    print(f"{'registers':>11} {'stack+spills':>13} {'instructions':>15}  ratio  kernel")
    ratios, bad = [], 0
    for kernel in wanted:
        stages = [side[kernel][0] if kernel in side else 0 for side in expressions]
        if stages == [0, 0]:
            continue
        if 0 in stages:
            complaint = f"only in {(new if stages[0] == 0 else old).name}"
            print(f"{'':>48}  {kernel}  <-- {complaint}")
        else:
            left, right = bodies[0, kernel], bodies[1, kernel]
            ratio = right.instructions / left.instructions
            ratios.append(ratio)
            complaint = verdict(left, right)
            if stages[0] != stages[1]:
                complaint = ", ".join(filter(None, [complaint, f"stages {stages[0]} {stages[1]}"]))
            print(
                f"{left.registers:>5} {right.registers:>5} {left.memory_bytes:>6} "
                f"{right.memory_bytes:>6} {left.instructions:>7} {right.instructions:>7} "
                f"{ratio:>6.3f}  {kernel}{'  <-- ' + complaint if complaint else ''}"
            )
        bad += bool(complaint)
    if not ratios:
        sys.exit("no kernel is in both revisions")
    print(
        f"{len(ratios)} kernels, instructions of {new.name} over those of {old.name}: "
        f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}; "
        f"{bad} over a bound"
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
