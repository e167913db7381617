#!/usr/bin/env python3
"""Fits the planner's costs to measured times: the constants of src/plan/sm90/cost.cpp and the three
numbers of each tiling in src/plan/sm90/tiling_costs.h.

    scripts/fit_gemm_costs.py RESULTS.jsonl [--held-out]

RESULTS.jsonl is what bench/gpu/run.py gemm wrote, block-scaled products with BF16 out.
Prints the constants, and each tiling's nanoseconds of a stage, of a tile and of the start by its
name. With --held-out a third of the shapes is left out of the fit and judged: by how much the
choices take longer than the best. The formula is cost.cpp's, in arrays; whether both say the
same is seen by Sm90CostTest, which has to find the regret that is printed here. Needs NumPy and
SciPy.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-not-found, import-untyped, unused-ignore]

MULTIPROCESSORS = 132
WEIGHT_OF_MANY_ROWS = 2.5  # of shapes with 1000 rows and more, where users look at 1 %

# The constants of gemm_cost.cpp: first guess, bounds.
CONSTANTS = {
    "memory": (4.0, 3.4, 4.7),  # MB a µs
    "cache": (11.2, 7.0, 14.0),
    "share_of_few": (0.5, 0.1, 1.0),
    "crowding": (0.5, 0.0, 0.8),
    "overlap": (3.0, 2.5, 9.0),
    "later_wave": (2.8, 0.5, 6.0),
    "half_lines": (1.1, 1.0, 1.5),
    "sectors": (1.18, 1.0, 1.5),
    "half_sectors": (1.6, 1.2, 2.2),
}
# Shares of the busiest multiprocessor: for each number of blocks that one may hold, above how many
# blocks to each, and the first guess of its time.
SHARES = {
    1: ((0, 0.48), (0.5, 0.83), (1, 1.4), (1.5, 1.75), (2.2, 2.2)),
    2: ((0, 0.48), (0.5, 0.64), (0.667, 0.95), (1, 1.65), (1.5, 1.75), (2, 2)),
    3: ((0, 0.5), (0.5, 0.7), (0.77, 1.1), (1, 1.46), (1.5, 2.4), (2.35, 2.4)),
    4: ((0, 0.5), (0.5, 0.75), (0.77, 0.97), (1, 1.35), (1.35, 1.85), (2, 2.5), (2.25, 3.4)),
}
LEVELS = [(held, above, guess) for held, shares in SHARES.items() for above, guess in shares]


class Tiling(NamedTuple):
    """The tiling that a candidate's name gives."""

    swapped: bool
    rows: int
    columns: int
    cluster_rows: int
    cluster_columns: int
    depth: int
    blocks: int
    order: str

    @classmethod
    def of(cls, name: str) -> Tiling:
        pattern = r"(\d+)x(\d+)(\.swapped)?\.w\d\.c(\d)x(\d)x(\d)\.b(\d)(.*)"
        match = re.fullmatch(pattern, name)
        assert match is not None, name
        rows, columns, swapped, *numbers, order = match.groups()
        return cls(bool(swapped), int(rows), int(columns), *map(int, numbers), order)

    def family(self) -> tuple[object, ...]:
        """Tilings that share the times of a stage and of a tile; the start is each one's own."""
        sizes = (self.rows, self.columns, self.cluster_rows, self.cluster_columns)
        return (self.swapped, *sizes, self.order, self.depth > 1)


class Row(NamedTuple):
    shape: tuple[int, int, int]
    name: str
    microseconds: float
    ratio: float  # over the best


def measured(file: str) -> list[Row]:
    """Times with rests of those that were timed twice; the others' scaled, as large products are
    slower without."""
    rows = []
    with open(file) as lines:
        for line in map(json.loads, lines):
            if line["section"] != "gemm":
                continue
            m, n, k = line["shape"]
            times = {name: t for name, t in line["times"].items() if re.search(r"\.c\d", name)}
            cool = float(np.median([t[1] / t[0] for t in times.values() if len(t) > 1]))
            rested = {name: t[1] if len(t) > 1 else t[0] * cool for name, t in times.items()}
            best = min(rested.values())
            for name, time in rested.items():
                tiling = Tiling.of(name)
                if not (tiling.swapped and m > 2 * tiling.columns):  # as the planner has it
                    rows.append(Row((m, n, k), name, time, time / best))
    return rows


def facts(row: Row) -> tuple[float, ...]:
    """All that predicted_microseconds() works out of shape and tiling."""
    (m, n, k), tiling = row.shape, Tiling.of(row.name)
    rows, columns = (n, m) if tiling.swapped else (m, n)
    cluster = tiling.cluster_rows * tiling.cluster_columns * tiling.depth
    left_over = {3: 15, 4: 8}.get(cluster, 0)
    at_once = max((MULTIPROCESSORS - left_over) * tiling.blocks // cluster, 1)
    tiles_m = math.ceil(rows / (tiling.rows * tiling.cluster_rows))
    tiles_n = math.ceil(columns / (tiling.columns * tiling.cluster_columns))
    running = min(tiles_m * tiles_n, at_once)
    stages = math.ceil(math.ceil(k / 128) / tiling.depth)
    boxes = tiles_m * tiling.rows * tiling.cluster_rows
    rows_read = math.ceil(rows / 8) * 8 if tiling.cluster_columns == 1 else boxes
    columns_read = tiles_n * tiling.columns * tiling.cluster_columns
    bytes_of_stage = 128 * tiling.depth * (rows_read * tiles_n + columns_read * tiles_m)
    blocks = tiles_m * tiles_n * cluster
    blocks_to_each = blocks / (MULTIPROCESSORS - left_over)
    level = max(
        index
        for index, (held, above, _) in enumerate(LEVELS)
        if held == tiling.blocks and above < blocks_to_each
    )
    return (
        math.ceil(tiles_m * tiles_n / at_once),
        math.ceil(running * tiling.blocks / at_once),
        stages,
        tiling.depth > 1,
        min(1.0, running * cluster / MULTIPROCESSORS),
        ((m + n) * k + 2 * m * n) * 1e-6,
        stages * bytes_of_stage * 1e-6,
        next(i for i, unit in enumerate((128, 64, 32, 1)) if k % unit == 0),
        level,
        blocks / MULTIPROCESSORS if tiling.swapped else math.inf,
    )


class Model:
    """Parameters: stage and tile of each family, start of each tiling, the shares of the busiest
    multiprocessor, the constants."""

    def __init__(self, rows: list[Row]) -> None:
        self.names = sorted({row.name for row in rows})
        self.families = sorted({Tiling.of(name).family() for name in self.names}, key=str)

    def family(self, name: str) -> int:
        return self.families.index(Tiling.of(name).family())

    def split(self, x: Any) -> tuple[Any, Any, Any, Any, dict[str, float]]:
        sizes = len(self.families), len(self.families), len(self.names), len(LEVELS)
        stage, tile, start, levels, rest = np.split(x, np.cumsum(sizes))
        return stage, tile, start, levels, dict(zip(CONSTANTS, map(float, rest), strict=True))

    def predict(self, x: Any, rows: list[Row], columns: Any) -> Any:
        stage, tile, start, levels, c = self.split(x)
        family = np.array([self.family(row.name) for row in rows])
        name = np.array([self.names.index(row.name) for row in rows])
        waves, sharers, stages, in_slices, busy, memory, cache, unit, level, to_each = columns
        work = waves * stages * stage[family] * (1 + c["crowding"] * (sharers - 1))
        work = work + (waves - 1) * np.where(in_slices > 0, c["later_wave"], tile[family])
        factors = np.array([1.0, c["half_lines"], c["sectors"], c["half_sectors"]])
        share = c["share_of_few"] + (1 - c["share_of_few"]) * busy
        uneven = np.maximum(levels[level.astype(int)] / to_each, 1)
        memory = uneven * memory / c["memory"]
        terms = (work, memory, factors[unit.astype(int)] * cache / c["cache"] / share)
        return start[name] + sum(t ** c["overlap"] for t in terms) ** (1 / c["overlap"])

    def fit(self, rows: list[Row]) -> Any:
        areas = [f[1] * f[2] for f in self.families]  # type: ignore[operator]
        begin = [
            ([0.1 + area / 5e4 for area in areas], 0.05, 2.0),
            ([0.8] * len(areas), 0.0, 4.0),
            ([2.6] * len(self.names), 1.5, 6.0),
            *(([guess], 0.7 * guess, 1.4 * guess) for _, _, guess in LEVELS),
            *(([guess], low, high) for guess, low, high in CONSTANTS.values()),
        ]
        x = np.concatenate([np.array(values, float) for values, _, _ in begin])
        low = np.concatenate([np.full(len(values), bound) for values, bound, _ in begin])
        high = np.concatenate([np.full(len(values), bound) for values, _, bound in begin])
        columns = np.array([facts(row) for row in rows], float).T
        times = np.log([row.microseconds for row in rows])
        ratio = np.array([row.ratio for row in rows])
        # A candidate that nobody would choose need not be predicted well.
        weight = np.select([ratio < 1.05, ratio < 1.15, ratio < 1.4], [4.0, 3.0, 1.5], 0.3)
        weight *= np.where([row.shape[0] >= 1000 for row in rows], WEIGHT_OF_MANY_ROWS, 1)

        def residuals(x: Any) -> Any:
            starts = self.split(x)[2]
            errors = (np.log(self.predict(x, rows, columns)) - times) * weight
            return np.concatenate([errors, 0.3 * (starts - 2.6)])

        bounds = (low - 1e-9, high + 1e-9)
        return least_squares(
            residuals, x, bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=60
        ).x

    def regret(self, x: Any, rows: list[Row]) -> list[float]:
        """For each shape, the chosen candidate's time over the best one's, in ascending order."""
        columns = np.array([facts(row) for row in rows], float).T
        chosen: dict[tuple[int, int, int], tuple[float, float]] = {}
        for row, time in zip(rows, self.predict(x, rows, columns), strict=True):
            least, _ = chosen.get(row.shape, (math.inf, 0.0))
            if time < least:
                chosen[row.shape] = (float(time), row.ratio)
        return sorted(ratio for _, ratio in chosen.values())


def report(title: str, regret: list[float]) -> None:
    median, ninety, most = (np.quantile(regret, q) for q in (0.5, 0.9, 0.98))
    print(
        f"{title}: {len(regret)} shapes, median {median:.3f}, 90 % {ninety:.3f}, "
        f"98 % {most:.3f}, worst {regret[-1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("--held-out", action="store_true")
    options = parser.parse_args()
    rows = measured(options.results)
    model = Model(rows)
    if options.held_out:
        shapes = sorted({row.shape for row in rows})
        held = set(random.Random(1).sample(shapes, len(shapes) // 3))
        x = model.fit([row for row in rows if row.shape not in held])
        report("held out", model.regret(x, [row for row in rows if row.shape in held]))
    x = model.fit(rows)
    report("all", model.regret(x, rows))
    stage, tile, start, levels, constants = model.split(x)
    print("; ".join(f"{name} {value:.3f}" for name, value in constants.items()))
    for (held, above, _), level in zip(LEVELS, levels, strict=True):
        print(f"{held} blocks held, above {above} to each: {level:.2f}")
    for i, name in enumerate(model.names):
        family = model.family(name)
        numbers = (stage[family], tile[family], start[i])
        costs = ", ".join(f"{1000 * number:.0f}" for number in numbers)
        print(f'    {{"{name}", {{{costs}}}}},')


if __name__ == "__main__":
    main()
