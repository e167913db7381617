"""octofold tune: the fastest kernel of each product on this GPU, for products to take."""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import octofold
from octofold import tuning

from . import gemm_options
from .bench import check_outputs
from .gpu.device import choose_device
from .measure import MIN_ROUNDS
from .report import ToolError, print_table, tracked, write_json

if TYPE_CHECKING:
    from .gpu.tune import Tuned

DESCRIPTION = """\
Time every kernel that could be the fastest for each product, check it, and keep the best in a table
that products follow on this GPU from the next process on. Products that are not in it are planned
as before: the table is for exactly these sizes, dtypes and scales, of contiguous matrices.

  octofold tune --suite deepseek-v3
  octofold tune --problem "gemm: m 300, n 4096, k 7168, a e4m3 channel, b e4m3 channel"
  octofold tune --problem "gemm: m 4096, n 24576, k 1536" --sustained
  octofold tune --problem "grouped_gemm: m 8192, n 4096, k 7168, groups 32 of rows"
  octofold tune --problems model.txt
  octofold tune --show
  octofold tune --clear

Take a GPU that does nothing else: 2 to 5 seconds a product, and the kernels' compilation once. With
--sustained the best are timed back to back until the chip's power limits them, as in training and
in long prompts: half a minute a product.
"""

DEFAULT_ROUNDS = 13
DEFAULT_SUSTAINED_ROUNDS = 3
DEFAULT_LEAST_GAIN = 0.01


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tune",
        help="measure which kernels are the fastest on this GPU, and take them",
        description=DESCRIPTION,
    )
    gemm_options.add_problems(parser)
    parser.add_argument(
        "--rounds",
        metavar="COUNT",
        type=gemm_options.whole_number(MIN_ROUNDS),
        help="rounds for the best kernels and the planned one "
        f"(default: {DEFAULT_ROUNDS}, sustained {DEFAULT_SUSTAINED_ROUNDS})",
    )
    parser.add_argument(
        "--sustained",
        action="store_true",
        help="the best are those that last, back to back for half a second",
    )
    parser.add_argument(
        "--least-gain",
        metavar="SHARE",
        type=parse_share,
        default=DEFAULT_LEAST_GAIN,
        help="the least gain; below it the planned kernel stays (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure, and write no table")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--show", action="store_true", help="where the table is, and if it is followed"
    )
    actions.add_argument("--clear", action="store_true", help="remove the table")
    parser.set_defaults(run=run)


def parse_share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"expected a share from 0 to 1, such as 0.01, got '{text}'"
        )
    return value


def run(arguments: argparse.Namespace) -> None:
    problems = gemm_options.problems_of(arguments)
    if arguments.show or arguments.clear:
        if problems:
            raise ToolError("--show and --clear measure nothing: leave the products out")
        (show_table if arguments.show else clear_table)()
    elif not problems:
        raise ToolError("name what to measure: --problem TEXT, --problems FILE or --suite")
    else:
        run_tune(arguments, problems)


def run_tune(arguments: argparse.Namespace, problems: Sequence[str]) -> None:
    check_outputs(arguments.json)
    choose_device("cuda")
    if not arguments.dry_run and tuning.table().file is None:
        raise ToolError(
            "there is no place for a table: name a folder in OCTOFOLD_CACHE_DIR, and leave "
            "OCTOFOLD_TUNING unset"
        )
    rounds = DEFAULT_SUSTAINED_ROUNDS if arguments.sustained else DEFAULT_ROUNDS
    results = measure(problems, arguments.rounds or rounds, sustained=arguments.sustained)
    keep = [result for result in results if result.gain >= 1 + arguments.least_gain]
    show(results, keep)
    if arguments.json is not None:
        document = [dataclasses.asdict(result) for result in results]
        write_json(arguments.json, {"sustained": arguments.sustained, "results": document})
    if arguments.dry_run:
        return
    file = tuning.write([result.choice(planned=result not in keep) for result in results])
    print(f"{len(results)} products in {file}, {len(keep)} by another kernel than planned")


def measure(problems: Sequence[str], rounds: int, *, sustained: bool) -> "list[Tuned]":
    import torch
    from octofold._timing import GRAPH, SUSTAINED

    from .gpu.tune import tune

    gpu = octofold.info().gpus[0]
    if why_not := gpu.operations["products that cast A"].why_not:  # which warpgroups alone do
        raise ToolError(f"only kernels of warpgroups are chosen among so far: {why_not}")
    last = SUSTAINED if sustained else None
    return [
        tune(problem, rounds, gpu.multiprocessors, GRAPH, torch.device("cuda"), last=last)
        for problem in tracked("tune", problems)
    ]


def show(results: "Sequence[Tuned]", kept: "Sequence[Tuned]") -> None:
    columns = ["product", "planned\nµs", "\n±", "fastest\nµs", "\n±", "gain", "kernel"]
    rows = [
        [
            result.problem,
            f"{result.planned_microseconds:.2f}",
            f"{result.planned_spread:.1%}",
            f"{result.microseconds:.2f}",
            f"{result.spread:.1%}",
            f"{result.gain:.3f}",
            result.candidate if result in kept else "as planned",
        ]
        for result in results
    ]
    mean = statistics.geometric_mean([result.gain if result in kept else 1.0 for result in results])
    totals = ["geometric mean", "", "", "", "", f"{mean:.3f}", ""]
    print_table("tune", columns, rows, totals)


def show_table() -> None:
    table = tuning.table()
    if table.shipped:
        print(f"{table.shipped} products of this GPU come with octofold")
    if table.file is None:
        print("no table: there is no place for one, or OCTOFOLD_TUNING is 0")
    elif table.fault:
        print(f"{table.file} is ignored: {table.fault}")
    elif not table.file.exists():
        print(f"no table: {table.file} does not exist")
    else:
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(table.file.stat().st_mtime))
        print(f"{table.products} products in {table.file}, written {written}")


def clear_table() -> None:
    table = tuning.table()
    print(f"removed {table.file}" if tuning.clear() else "there is no table")
