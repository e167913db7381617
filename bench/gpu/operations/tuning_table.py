"""Measures the table of tuned products that comes with the library for this GPU:

    python bench/gpu/run.py tuning_table RESULTS.jsonl --times tests/cases/h200_gemm_times.csv
        --table OUT.json [--rows 1 8 ...]

The times are what the operation gemm measured: a line for each M,N,K, of each candidate the time
over the best one's, in thousandths. Of the N,K that have many M there, the candidates that were
nearly the best are checked and timed beside the planned one as `octofold tune` does it: in turns,
with rests, each set of operands in memory of its own. Into the table goes what gains 3 % at least.
A choice is for all numbers of rows down to the next smaller one that is measured: as many tiles of
rows, so the same work. Copy OUT.json to src/plan/tables/<name of the GPU>.json.
"""

import csv
import itertools
import json
from functools import partial
from pathlib import Path

import octofold
from common.measure import Build
from common.measure import measure as measure_builds
from common.run import text_of
from octofold import tuning
from octofold._timing import COLD_BYTES, GRAPH
from octofold_tool.gpu.measuring import Implementation
from octofold_tool.gpu.tune import check_of, samples

ROUNDS, SECONDS = 7, 240
ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256)
LEAST_GAIN = 1.03
FEWEST_SIZES = 10  # of M; other N,K of the times were drawn at random
NEARLY = 1100  # thousandths of the best
MOST = 6  # candidates of a product


def add_options(parser):
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)


def read(path):
    """Returns, by N,K and then by M, candidates that were nearly the best, the best first."""
    with path.open() as file:
        _m, _n, _k, *names = next(lines := csv.reader(file))
        found = {}
        for m, n, k, *values in lines:
            times = {name: int(value) for name, value in zip(names, values, strict=True) if value}
            near = sorted((name for name in times if times[name] <= NEARLY), key=times.get)
            found.setdefault((int(n), int(k)), {})[int(m)] = near[:MOST]
    return {size: of_m for size, of_m in found.items() if len(of_m) >= FEWEST_SIZES}


def cases(run):
    """A shape, the number of rows below it that is measured, and its candidates."""
    for (n, k), of_m in sorted(read(run.options.times).items()):
        for below, m in itertools.pairwise((0, *run.options.rows)):
            yield (m, n, k), below, of_m[m]


def measure(run, case):
    """Returns the table's file, and a product's key and entry if it gains enough."""
    shape, below, names = case
    m, n, k = shape
    problem, gpu = tuning.complete(f"gemm: m {m}, n {n}, k {k}"), octofold.info().gpus[0]
    planned = tuning.planned(problem, gpu.multiprocessors)
    products = samples(problem, run.device, COLD_BYTES)
    error, limit = check_of(problem, products[0])

    def make(name):
        calls = [tuning.using(name)(product.call) for product in products]
        return Implementation(calls, partial(error, calls[0]), limit, method=GRAPH)

    builds = [Build(name, partial(make, name), True) for name in dict.fromkeys([planned, *names])]
    found = measure_builds(run, "tuning", text_of(shape), builds, planned)
    times = {name: result.microseconds for name, result in found.items()}
    best = min(times, key=times.get)
    if times[planned] < LEAST_GAIN * times[best]:
        return run.options.table, None
    return run.options.table, (
        problem,
        {
            "rows_from": below + 1,
            "candidate": best,
            "microseconds": round(times[best], 2),
            "planned_microseconds": round(times[planned], 2),
        },
    )


def summary(found):
    gpu = octofold.info().gpus[0]
    gains = dict(entry for _, entry in found if entry is not None)
    document = {
        "octofold": octofold.__version__,
        "gpu": gpu.name,
        "compute_capability": f"{gpu.compute_major}.{gpu.compute_minor}",
        "multiprocessors": gpu.multiprocessors,
        "products": gains,
    }
    found[0][0].write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(gains)} of {len(found)} products gain {LEAST_GAIN - 1:.0%} or more")
