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
from collections.abc import Sequence

import octofold
from common.measure import QUICK
from octofold import tuning
from octofold_tool.gpu.tune import tune

ROUNDS, SECONDS = 5, 550
PAIRS = (("1x128", "128x128"),) * 3 + (("channel", "channel"), ("tensor", "tensor"))
FEW = 48
MOST_OPERATIONS = 4e12


class Draw:
    """Sizes at random, each as likely as its half. Columns and depth are multiples of 128, as in
    models, and every fourth time of 16."""

    def __init__(self, seed: int) -> None:
        self.numbers = random.Random(seed)

    def size(self, least: int, most: int, multiple: int = 1) -> int:
        drawn = least * (most / least) ** self.numbers.random()
        return max(round(drawn / multiple), 1) * multiple

    def scales(self) -> str:
        a, b = self.numbers.choice(PAIRS)
        return f"a e4m3 {a}, b e4m3 {b}"


def dense(draw: Draw, rows: tuple[int, int], multiples: Sequence[int] = (128, 128, 128, 16)) -> str:
    multiple = draw.numbers.choice(multiples)
    n, k = draw.size(512, 16384, multiple), draw.size(256, 16384, multiple)
    return f"m {draw.size(*rows)}, n {n}, k {k}"


def in_groups(draw: Draw, most_rows: int, of: str = "rows") -> str:
    """Groups of most_rows rows at most."""
    groups, each = draw.size(2, 64), draw.size(1, most_rows)
    n, k = draw.size(512, 7168, 128), draw.size(512, 7168, 128)
    if of == "rows":
        return f"m {groups * each}, n {n}, k {k}, groups {groups} of rows"
    return f"m {2 * each}, n {n}, k {k}, groups {groups} of masked rows, expected {each}"


def depth(draw: Draw) -> str:
    groups, each = draw.size(2, 32), draw.size(128, 4096, 128)
    m, n = draw.size(512, 7168, 128), draw.size(512, 7168, 128)
    return (
        f"m {m}, n {n}, k {groups * (each + 128)}, out float32, c float32, "
        f"a e4m3 1x128, b e4m3 1x128, groups {groups} of k"
    )


KINDS = {
    "few": lambda draw: f"gemm: {dense(draw, (1, FEW))}, {draw.scales()}",
    "many": lambda draw: f"gemm: {dense(draw, (FEW, 16384))}, {draw.scales()}",
    "sums": lambda draw: f"gemm: {dense(draw, (1, 8192))}, out float32, {draw.scales()}",
    "cast": lambda draw: f"gemm: {dense(draw, (1, 16))}, cast_from bfloat16",
    "rows": lambda draw: f"grouped_gemm: {in_groups(draw, 4096)}",
    "masked": lambda draw: f"grouped_gemm: {in_groups(draw, 1024, 'masked')}",
    "depth": lambda draw: f"grouped_gemm: {depth(draw)}",
    "gated": lambda draw: f"gated_gemm: {dense(draw, (1, 16384), (128,))}",
    "gated_rows": lambda draw: f"gated_gemm: {in_groups(draw, 4096)}",
    "weights": lambda draw: f"gemm_weight_only: {dense(draw, (1, 4096))}",
    "weights_rows": lambda draw: f"grouped_gemm_weight_only: {in_groups(draw, 512)}",
}


def add_options(parser):
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--count", type=int, default=60, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=None, help="default: one that is drawn")


def operations_of(problem: str) -> float:
    """Multiplications and additions of a problem, by its text."""
    fields = dict(part.partition(" ")[::2] for part in problem.partition(": ")[2].split(", "))
    groups = int(fields["groups"].split()[0]) if "masked" in problem else 1
    return 2.0 * groups * int(fields["m"]) * int(fields["n"]) * int(fields["k"])


def cases(run):
    seed = run.options.seed
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    run.line(f"--seed {seed}")
    draws = {kind: Draw(f"{seed} {kind}") for kind in run.options.kinds}
    for _ in range(run.options.count):
        for kind, draw in draws.items():
            problem = KINDS[kind](draw)
            while operations_of(problem) > MOST_OPERATIONS:
                problem = KINDS[kind](draw)
            yield kind, tuning.complete(problem)


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
