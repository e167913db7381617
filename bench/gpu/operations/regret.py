"""Draws products of every kind, checks and times all their candidates, and shows how much more time
than the fastest of them the planner's choice takes:

    python bench/gpu/run.py regret RESULTS.jsonl [--kinds gemm masked] [--count 60] [--seed 7]

Kinds take turns, so that a run that is out of time has some of each. Rows fall to groups as
octofold.tuning.run() has it, tables of measured choices are not followed, and operands come from
memory, not from L2.
"""

import collections
import random
import statistics

import octofold
from common.measure import QUICK
from octofold import tuning
from octofold_tool.gpu.draws import KINDS, Draw, drawn
from octofold_tool.gpu.tune import tune

ROUNDS, SECONDS = 5, 550
MOST_OPERATIONS = 4e12


def add_options(parser):
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--count", type=int, default=60, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=None, help="default: one that is drawn")


def cases(run):
    seed = run.options.seed
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    run.line(f"--seed {seed}")
    draws = {kind: Draw(f"{seed} {kind}") for kind in run.options.kinds}
    for _ in range(run.options.count):
        for kind, draw in draws.items():
            yield kind, tuning.complete(drawn(kind, draw, MOST_OPERATIONS))


def measure(run, case):
    """Returns the kind and the planned choice's time over the fastest's."""
    kind, problem = case
    gpu = octofold.info().gpus[0]
    tuned = tune(problem, run.rounds, gpu.multiprocessors, QUICK, run.device)
    run.record("regret", kind=kind, regret=tuned.gain, **vars(tuned))
    if tuned.gain > 1.05:
        run.line(f"{tuned.gain:.3f} {tuned.problem}: {tuned.planned}, not {tuned.candidate}")
    return kind, tuned.gain


def summary(found):
    regrets = collections.defaultdict(list)
    for kind, regret in found:
        regrets[kind].append(regret)
    for kind, each in regrets.items():
        each.sort()
        print(
            f"{kind}: {len(each)} problems, mean {statistics.mean(each):.3f}, median "
            f"{statistics.median(each):.3f}, 95 % {each[int(0.95 * len(each))]:.3f}, "
            f"worst {each[-1]:.3f}"
        )
