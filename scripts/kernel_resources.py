#!/usr/bin/env python3
"""Lists what kernels take of a multiprocessor. Those for older GPUs are the table of
docs/older-gpus.md, which is put between the marks there in two minutes; or what a change of kernels
does to machine code is listed:

    python scripts/kernel_resources.py
    python scripts/kernel_resources.py --before OTHER/build/release/tests/cpp/octofold_cuda_test \
        --only "Gemm_1x128*"

Runs the tests that compile kernels with NVRTC (OCTOFOLD_NVRTC; no GPU), and reads what they record.
A comparison is of all kernels of the families that --only names. The exit code is 1 if one is there
on one side only, or takes more than 4 registers or 2 % of the instructions more.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/tests/cpp/octofold_cuda_test"
DOCUMENT = ROOT / "docs/older-gpus.md"
FAMILIES = {
    "WeightsFewRows": "FP8 weights, 1 to 16 rows",
    "WeightsManyRows": "FP8 weights, more rows",
    "WeightsGradients": "their gradient",
    "AttentionFewQueries": "attention, few queries",
    "AttentionManyQueries": "attention, many queries",
    "AttentionWideHeads": "attention, heads beyond 256",
    "Dots": "`dot`",
    "GemmByWarps": "FP8 with FP8",
    "GemmGatedByWarps": "FP8 with FP8",
}
# Threads, blocks, and KB of shared memory, of a multiprocessor: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability". Each has four times 16384 registers, which a
# warp takes by 256.
TARGETS = {75: (1024, 16, 64), 80: (2048, 32, 164), 86: (1536, 16, 100), 89: (1536, 24, 100),
           90: (2048, 32, 228), 120: (1536, 24, 100)}  # fmt: skip


class Kernel(NamedTuple):
    threads: int
    registers: int
    shared: int
    """Bytes of a block."""
    instructions: int


def recorded(program: Path | str, names: list[str]) -> dict[str, dict[str, Kernel]]:
    """The kernels of each test of a family of such a name, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.json"
        wanted = ":".join(f"Nvrtc/KernelsCompileTest.*/{name}_Sm*" for name in names)
        command = [program, f"--gtest_filter={wanted}", f"--gtest_output=json:{file}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        suites = json.loads(file.read_text())["testsuites"]
    tests: dict[str, dict[str, Kernel]] = {}
    for test in (test for suite in suites for test in suite["testsuite"]):
        numbers = {
            name: Kernel(*map(int, value.split()))
            for name, value in test.items()
            if isinstance(value, str) and re.fullmatch(r"\d+( \d+){3}", value)
        }
        tests[test["name"].rpartition("/")[2]] = numbers
    return tests


def resident(target: int, kernel: Kernel) -> int:
    """Blocks of a multiprocessor at a time."""
    most_threads, most_blocks, kilobytes = TARGETS[target]
    of_warp = -(-32 * kernel.registers // 256) * 256
    reserved = 1024 if target >= 80 else 0
    by_memory = kilobytes * 1024 // max(kernel.shared + reserved, 1)
    by_registers = 4 * (16384 // of_warp) // (kernel.threads // 32)
    return min(most_threads // kernel.threads, most_blocks, by_registers, by_memory)


def families(tests: dict[str, dict[str, Kernel]]) -> dict[str, dict[int, list[Kernel]]]:
    """The kernels of each row of the table and target."""
    found: dict[str, dict[int, list[Kernel]]] = {}
    for test, kernels in tests.items():
        name, _, target = test.rpartition("_Sm")
        for kernel, numbers in kernels.items():
            if "combine" not in kernel:  # a launch of its own, of threads that only add
                found.setdefault(FAMILIES[name], {}).setdefault(int(target), []).append(numbers)
    return found


def span(values: list[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return f"{low}" if low == high else f"{low}–{high}"


def table(rows: dict[str, dict[int, list[Kernel]]]) -> str:
    lines = ["| kernels | GPU | threads | registers | shared memory, KB | warps, % of the most |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for family, targets in rows.items():
        for target, kernels in sorted(targets.items()):
            warps = [
                100 * resident(target, kernel) * kernel.threads / TARGETS[target][0]
                for kernel in kernels
            ]
            columns = [span([kernel[i] for kernel in kernels]) for i in range(2)]
            memory = span([kernel.shared / 1024 for kernel in kernels])
            lines.append(
                f"| {family} | {target / 10} | {columns[0]} | {columns[1]} | {memory} "
                f"| {span(warps)} |"
            )
    return "\n".join(lines)


def compare(before: dict[str, dict[str, Kernel]], after: dict[str, dict[str, Kernel]]) -> bool:
    """Prints the kernels that differ in registers or instructions; whether all are within the
    bounds."""
    old, new = (
        {k: v for test in tests.values() for k, v in test.items()} for tests in (before, after)
    )
    worse = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            figures, is_worse = "before only" if name in old else "after only", True
        else:
            left, right = old[name], new[name]
            if (left.registers, left.instructions) == (right.registers, right.instructions):
                continue
            is_worse = (
                right.registers > left.registers + 4
                or right.instructions > 1.02 * left.instructions
            )
            figures = (
                f"registers {left.registers} {right.registers}, "
                f"instructions {left.instructions} {right.instructions}"
            )
        worse += is_worse
        print(f"{figures}{' <--' if is_worse else ''}: {name}")
    print(f"{len(old.keys() & new.keys())} kernels on both sides, {worse} over a bound")
    return worse == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", nargs="?", default=PROGRAM, help="octofold_cuda_test")
    parser.add_argument("--before", help="that of the sources before the change")
    parser.add_argument(
        "--only", default="*", help="families of kernels, of cuda/kernels_compile_test.cpp"
    )
    arguments = parser.parse_args()
    if arguments.before:
        sides = (
            recorded(program, [arguments.only]) for program in (arguments.before, arguments.program)
        )
        return 0 if compare(*sides) else 1
    begin, end = "<!-- kernel resources -->", "<!-- /kernel resources -->"
    before, rest = DOCUMENT.read_text().split(begin)
    made = table(families(recorded(arguments.program, list(FAMILIES))))
    DOCUMENT.write_text(f"{before}{begin}\n{made}\n{end}{rest.split(end)[1]}")
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
