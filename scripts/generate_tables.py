#!/usr/bin/env python3
"""Writes tables that stand on two pages, where the second one is made from the first.

docs/architecture.md has the rooms of doors.json, README.md some cells of docs/performance.md.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PERFORMANCE = ROOT / "docs" / "performance.md"


class Speed(NamedTuple):
    """A line of README's table: a cell of the first table below a heading that has these names."""

    operation: str
    heading: str
    row: tuple[str, ...]  # its first cells; an empty one counts as that above it
    column: str
    case: str
    against: str


SPEEDS = (
    Speed("`gemm`, scales of blocks", "Dense products", ("H200", "64"), "DeepGEMM",
          "64 rows", "DeepGEMM"),
    Speed("", "Dense products", ("H200", "4096"), "DeepGEMM", "4096 rows", "DeepGEMM"),
    Speed("SwiGLU and its cast", "Fused casts", ("H200", "SwiGLU, rows"), "Octofold",
          "8192 × 7168", "a device copy, which none beats (TileKernels: 0.82)"),
    Speed("linear layer, forward and backward", "Linear layers in training",
          ("H200", "8192,4096,4096"), "BF16", "8192 tokens, 4096 × 4096", "BF16"),
    Speed("linear layer, inference", "Linear layers at inference", ("H200", "16"), "BF16",
          "16 tokens", "BF16"),
    Speed("experts, forward and backward", "Experts", ("H200", "8192, 128, 8, 2048, 768"),
          "forward and backward, weights cast in each step", "8192 tokens, 128 experts",
          "torch's grouped products, compiled, in a graph"),
    Speed("attention over FP8 keys, decoding", "Attention",
          ("H200", "decode, 64 sequences of 8192 keys"), "cuDNN", "64 sequences of 8192 keys",
          "cuDNN over FP16 keys"),
    Speed("`gemm` without a GPU", "CPU reference backend",
          ("AMD EPYC (AVX2), 2 cores, BF16 output", "1", "1024"), "M,1536,384",
          "1024 rows, 1536 × 384, one thread", "NumPy's FP32"),
)  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def look_up(page: str, speed: Speed) -> str:
    """The cell. Raises SystemExit if the page has no such one."""
    _, _, section = page.partition(f"\n## {speed.heading}\n")
    section, _, _ = section.partition("\n## ")
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        header, _, *rows = [cells(line) for line in table.splitlines()]
        above: list[str] = []
        for row in rows:
            above = [cell or old for cell, old in zip(row, above or row, strict=True)]
            if speed.column in header and tuple(above[: len(speed.row)]) == speed.row:
                return row[header.index(speed.column)]
    sys.exit(f"{PERFORMANCE}: {speed.heading!r} has no {speed.row} with a column {speed.column!r}")


def speeds() -> str:
    page = PERFORMANCE.read_text("utf-8")
    lines = ["| operation | case | speed | against |", "|---|---|---|---|"]
    for speed in SPEEDS:
        link = speed.heading.lower().replace(" ", "-")
        operation = speed.operation and f"[{speed.operation}](docs/performance.md#{link})"
        # A geometric mean stands before the worst shape in brackets.
        value = look_up(page, speed).partition(" (")[0]
        lines.append(f"| {operation} | {speed.case} | {value} | {speed.against} |")
    return "\n".join(lines) + "\n"


def rooms() -> str:
    lines = ["| room | holds | may include |", "|---|---|---|"]
    for room, entry in json.loads((ROOT / "doors.json").read_text("utf-8"))["rooms"].items():
        doors = ", ".join(f"`{door}`" for door in entry["doors"]) or "-"
        lines.append(f"| `{room}` | {entry['holds']} | {doors} |")
    return "\n".join(lines) + "\n"


def write(page: Path, source: str, table: str) -> None:
    """Puts the table between the comments that name its source."""
    begin, end = f"<!-- {source} -->\n", f"<!-- end of {source} -->\n"
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{table}{end}{after}", "utf-8")


def main() -> None:
    write(ROOT / "docs" / "architecture.md", "doors.json", rooms())
    write(ROOT / "README.md", "docs/performance.md", speeds())


if __name__ == "__main__":
    main()
