"""Measures the table of tuned products that comes with the library for this GPU:

    python bench/gpu/tuning_table.py tests/cases/h200_gemm_times.csv OUT.json [--rows 1 8 ...]

TIMES has what bench/gpu/gemm.py measured: a line for each M,N,K, of each candidate
the time over the best one's, in thousandths. Of the N,K that it has with many M, the candidates
that were nearly the best are checked and timed beside the planned one as `octofold tune` does it:
in turns, with rests, each set of operands in memory of its own. Into the table goes what gains 3 %
at least. A choice is for all numbers of rows down to the next smaller one that is measured: as many
tiles of rows, so the same work. Copy OUT.json to src/plan/tables/<name of the GPU>.json.
"""

import argparse
import csv
import itertools
import json
import time

import octofold
import torch
from octofold import tuning
from octofold._timing import COLD_BYTES, GRAPH, timings
from octofold_tool.gpu.tune import Wanted, require_right
from octofold_tool.products import GemmOptions

ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256)
LEAST_GAIN = 1.03
FEWEST_SIZES = 10  # of M; other N,K of TIMES were drawn at random
NEARLY = 1100  # thousandths of the best
MOST = 6  # candidates of a product
OPTIONS = GemmOptions(("e4m3", "e4m3"), ("1x128", "128x128"), "bfloat16", rounds=7)
WANTED = Wanted(OPTIONS)


def read(path):
    """Returns, by N,K and then by M, candidates that were nearly the best, the best first."""
    with open(path) as file:
        _m, _n, _k, *names = next(lines := csv.reader(file))
        found = {}
        for m, n, k, *values in lines:
            times = {name: int(value) for name, value in zip(names, values, strict=True) if value}
            near = sorted((name for name in times if times[name] <= NEARLY), key=times.get)
            found.setdefault((int(n), int(k)), {})[int(m)] = near[:MOST]
    return {size: of_m for size, of_m in found.items() if len(of_m) >= FEWEST_SIZES}


def measured(shape, names):
    """Microseconds by name."""
    cases = WANTED.prepare(shape, torch.device("cuda"), COLD_BYTES)
    calls = {name: [case.by(name) for case in cases] for name in names}
    for name, ours in calls.items():
        require_right(f"{shape} by {name}", cases[0], ours[0])
    samplers = {name: GRAPH.sampler(ours) for name, ours in calls.items()}
    times = timings(samplers, OPTIONS.rounds)
    return {name: timing.microseconds for name, timing in times.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("times")
    parser.add_argument("table")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    gpu = octofold.info().gpus[0]
    document = {
        "octofold": octofold.__version__,
        "gpu": gpu.name,
        "compute_capability": f"{gpu.compute_major}.{gpu.compute_minor}",
        "multiprocessors": gpu.multiprocessors,
        "products": {},
    }
    begin, gains = time.monotonic(), []
    for (n, k), of_m in sorted(read(options.times).items()):
        for below, m in itertools.pairwise((0, *options.rows)):
            if time.monotonic() - begin > options.seconds:
                print(f"no time for {m},{n},{k}", flush=True)
                continue
            problem = WANTED.problem((m, n, k))
            planned = tuning.planned(problem, gpu.multiprocessors)
            times = measured((m, n, k), dict.fromkeys([*of_m[m], planned]))
            best = min(times, key=times.get)
            gains.append(times[planned] / times[best])
            others = " ".join(f"{micro:.2f} {name}" for name, micro in times.items())
            print(f"{m},{n},{k}: {gains[-1]:.3f} over {planned}: {others}", flush=True)
            if gains[-1] >= LEAST_GAIN:
                document["products"][tuning._key(problem)] = {
                    "rows_from": below + 1,
                    "candidate": best,
                    "microseconds": round(times[best], 2),
                    "planned_microseconds": round(times[planned], 2),
                }
            with open(options.table, "w") as file:
                file.write(json.dumps(document, indent=1) + "\n")
    print(f"{len(document['products'])} of {len(gains)} products gain {LEAST_GAIN - 1:.0%} or more")


if __name__ == "__main__":
    main()
