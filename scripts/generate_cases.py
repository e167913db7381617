#!/usr/bin/env python3
"""Writes tests/cases/gemm.csv, the one table of GEMM cases that every backend is checked with.

Every granularity pair meets every shape; the other columns (dtypes, addends, strides, power-of-two
scales) cycle at co-prime periods, so that their combinations spread over the table. CI runs this
again and compares.
"""

import csv
import itertools
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "cases" / "gemm.csv"

PAIRS = list(itertools.product(["tensor", "channel", "1x128", "128x128"], repeat=2))

# M, N, K: nothing, one element, both sides of the 128 scale block and of CPU and GPU tiles, ragged
# in one dimension and in all, long and flat.
SHAPES = [
    (0, 8, 16), (8, 0, 16), (8, 16, 0), (0, 0, 0),
    (1, 1, 1), (1, 1, 128), (1, 1, 129), (2, 3, 5), (7, 13, 127),
    (1, 128, 128), (1, 129, 640), (1, 1000, 384), (3, 256, 2048), (5, 2112, 512),
    (16, 16, 16), (31, 33, 32), (64, 64, 64), (64, 192, 256), (63, 65, 1000),
    (127, 128, 128), (128, 127, 128), (128, 128, 127), (128, 128, 128),
    (129, 128, 128), (128, 129, 128), (128, 128, 129), (129, 129, 129),
    (128, 256, 128), (129, 257, 130), (255, 255, 255), (256, 256, 256), (257, 511, 385),
    (300, 1, 300), (1, 300, 4096), (600, 8, 40), (8, 600, 1), (40, 24, 3000),
    (100, 2112, 256), (384, 384, 1536), (512, 640, 513),
]  # fmt: skip

DTYPE_PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")]
D_DTYPES = ["bfloat16", "float32", "float16"]
C_KINDS = ["none", "same", "none", "float32", "in_place"]
BIAS_KINDS = ["none", "same", "float32", "none", "none", "same", "none"]
ROW_PADDINGS = [0, 0, 16, 3, 0, 1, 0, 128, 0, 5, 0]
POWERS_OF_TWO = [0] * 7 + [1] * 6

COLUMNS = [
    "name", "m", "n", "k", "a_dtype", "b_dtype", "granularity_a", "granularity_b", "d_dtype",
    "c", "bias", "row_padding", "power_of_two",
]  # fmt: skip


def rows():
    """Yields the rows of the table as dictionaries."""
    cycles = [
        itertools.cycle(values) for values in (C_KINDS, BIAS_KINDS, ROW_PADDINGS, POWERS_OF_TWO)
    ]
    for index, ((m, n, k), pair) in enumerate(itertools.product(SHAPES, PAIRS)):
        c, bias, row_padding, power_of_two = (next(cycle) for cycle in cycles)
        # Pairs have period 16 in `index`: dtypes step with the shape too, to meet all of them.
        a_dtype, b_dtype = DTYPE_PAIRS[(index // len(PAIRS) + index) % len(DTYPE_PAIRS)]
        values = (
            f"{index:03d}_{m}x{n}x{k}_{'_'.join(pair)}",
            m, n, k, a_dtype, b_dtype, *pair,
            D_DTYPES[index % len(D_DTYPES)],
            c, bias, row_padding, power_of_two,
        )  # fmt: skip
        yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    with OUTPUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    main()
