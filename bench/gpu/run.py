"""Measures an operation beside its peers on a GPU, each result checked first:

    python bench/gpu/run.py OPERATION RESULTS.jsonl [options]
    python bench/gpu/run.py OPERATION --help
    torchrun --nproc-per-node 2 bench/gpu/run.py parallel_layers RESULTS.jsonl

Lines of JSON are appended to RESULTS.jsonl as they come, and tables are printed. A peer that is not
installed, fails or is wrong is left out, and said; the exit code is 1 if that happened to something
of Octofold's. --device cpu tries the script itself, on tiny cases: times mean nothing there.

An operation is a module of bench/gpu/operations:

    ROUNDS, SECONDS      defaults of --rounds and --seconds; CASE_SECONDS, if cases take long
    add_options(parser)  its own options, if it has any
    cases(run)           yields what is measured
    measure(run, case)   measures one: builds of Octofold's and of the peers, with their checks
    summary(found)       shows what measure() returned of all, if that needs to be seen together
    ON_RANKS             True of what torchrun starts: `run` is then a process group's
"""

import importlib
import os
import sys
from pathlib import Path

# NVLink's multicast is not used. NCCL and torch look before anything else is imported.
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

FOLDER = Path(__file__).parent / "operations"
OPERATIONS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in OPERATIONS:
        print(f"{__doc__}\nOperations: {', '.join(OPERATIONS)}")
        return 0 if name in ("-h", "--help") else 2
    operation = importlib.import_module(f"operations.{name}")
    run_module = importlib.import_module("common.run")
    new_run = run_module.Run
    if getattr(operation, "ON_RANKS", False):
        new_run = importlib.import_module("common.ranks").RankRun
    with new_run(run_module.parsed(operation, sys.argv[2:])) as run:
        found = []
        try:
            for case in run.cases(operation.cases(run)):
                found.append(operation.measure(run, case))
        except run_module.OutOfTime:
            run.line(f"stopped after {run.seconds:.0f} s")
        if hasattr(operation, "summary") and found:
            operation.summary(found)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main())
