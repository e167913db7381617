#!/usr/bin/env python3
"""Lists what kernels for older GPUs take of a multiprocessor, as the table of docs/older-gpus.md:

    python scripts/kernel_resources.py [build/release/tests/cpp/octofold_cuda_test]

Runs the tests that compile them with NVRTC (OCTOFOLD_NVRTC; no GPU) for each target, and puts what
they record between the marks in the document. Takes two minutes.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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


def resident(target: int, threads: int, registers: int, shared: int) -> int:
    """Blocks of a multiprocessor at a time."""
    most_threads, most_blocks, kilobytes = TARGETS[target]
    of_warp = -(-32 * registers // 256) * 256
    reserved = 1024 if target >= 80 else 0
    by_memory = kilobytes * 1024 // max(shared + reserved, 1)
    by_registers = 4 * (16384 // of_warp) // (threads // 32)
    return min(most_threads // threads, most_blocks, by_registers, by_memory)


def recorded(program: str) -> dict[str, dict[int, list[tuple[int, int, int]]]]:
    """(Threads, registers, bytes) of the kernels of each family and target."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.json"
        wanted = ":".join(f"Nvrtc/KernelsCompileTest.*/{name}_Sm*" for name in FAMILIES)
        command = [program, f"--gtest_filter={wanted}", f"--gtest_output=json:{file}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        suites = json.loads(file.read_text())["testsuites"]
    families: dict[str, dict[int, list[tuple[int, int, int]]]] = {}
    for suite in suites:
        for test in suite["testsuite"]:
            named = re.search(r"/(\w+)_Sm(\d+)$", test["name"])
            if named is None or named[1] not in FAMILIES:
                continue
            family, target = FAMILIES[named[1]], int(named[2])
            for kernel, value in test.items():
                if "combine" in kernel:  # a launch of its own, of threads that only add
                    continue
                if isinstance(value, str) and re.fullmatch(r"\d+ \d+ \d+", value):
                    threads, registers, shared = map(int, value.split())
                    kernels = families.setdefault(family, {}).setdefault(target, [])
                    kernels.append((threads, registers, shared))
    return families


def span(values: list[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return f"{low}" if low == high else f"{low}–{high}"


def table(families: dict[str, dict[int, list[tuple[int, int, int]]]]) -> str:
    lines = ["| kernels | GPU | threads | registers | shared memory, KB | warps, % of the most |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for family, targets in families.items():
        for target, kernels in sorted(targets.items()):
            warps = [
                100 * resident(target, *kernel) * kernel[0] / TARGETS[target][0]
                for kernel in kernels
            ]
            columns = [span([kernel[i] for kernel in kernels]) for i in range(2)]
            memory = span([kernel[2] / 1024 for kernel in kernels])
            lines.append(
                f"| {family} | {target / 10} | {columns[0]} | {columns[1]} | {memory} "
                f"| {span(warps)} |"
            )
    return "\n".join(lines)


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/tests/cpp/octofold_cuda_test"
    begin, end = "<!-- kernel resources -->", "<!-- /kernel resources -->"
    before, rest = DOCUMENT.read_text().split(begin)
    after = rest.split(end)[1]
    made = table(recorded(program))
    DOCUMENT.write_text(f"{before}{begin}\n{made}\n{end}{after}")
    print(made)


if __name__ == "__main__":
    main()
