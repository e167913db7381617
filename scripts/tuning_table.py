#!/usr/bin/env python3
"""Writes the table of tuned products that comes with the library, from measured times.

    scripts/tuning_table.py tests/cases/h200_gemm_times.csv "NVIDIA H200" \\
        src/plan/tables/NVIDIA_H200.json

The times are those of tests/gpu/measure_candidates.py: a line for each M,N,K, of each candidate the
time over the best one's, in thousandths. Taken are products of few rows of the N,K that were
measured with many M, where what the planner reckons to be the best takes 3 % more than what was.
Up to 64 rows a choice holds from the next smaller M that was measured on: as many tiles of rows, so
the same work. Runs by the octofold that is installed, whose planner is asked.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from pathlib import Path

import octofold
from octofold import tuning
from octofold.kernel_cache import GemmProblem

MOST_ROWS = 64
LEAST_GAIN = 0.03
FEWEST_SIZES = 10  # of M; other N,K were drawn at random

Times = dict[tuple[int, int], dict[int, dict[str, int]]]
"""Of N,K, of M, of a candidate's name."""


def read(file: Path) -> Times:
    with file.open() as stream:
        _m, _n, _k, *names = next(lines := csv.reader(stream))
        times: Times = {}
        for m, n, k, *values in lines:
            of_m = {name: int(value) for name, value in zip(names, values, strict=True) if value}
            times.setdefault((int(n), int(k)), {})[int(m)] = of_m
    return times


def products(times: Times) -> dict[str, dict[str, object]]:
    table = {}
    for (n, k), of_m in sorted(times.items()):
        if len(of_m) < FEWEST_SIZES:
            continue
        for below, m in itertools.pairwise((0, *sorted(of_m))):
            problem = GemmProblem(m, n, k)
            best = min(of_m[m], key=of_m[m].__getitem__)
            planned = of_m[m].get(tuning.planned(problem), 2000)  # slower ones are left out
            if m <= MOST_ROWS and planned >= (1 + LEAST_GAIN) * of_m[m][best]:
                table[tuning._key(problem)] = {"rows_from": below + 1, "candidate": best}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a table of tuned products.")
    parser.add_argument("times", type=Path)
    parser.add_argument("gpu", help="its name, as the driver says it")
    parser.add_argument("table", type=Path)
    arguments = parser.parse_args()
    document = {
        "octofold": octofold.__version__,
        "gpu": arguments.gpu,
        "compute_capability": "9.0",
        "multiprocessors": 132,
        "products": products(read(arguments.times)),
    }
    arguments.table.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(document['products'])} products in {arguments.table}")


if __name__ == "__main__":
    main()
