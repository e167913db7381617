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
from .bench import check_outputs, title
from .gemm_options import SUITES, Shape
from .gpu.device import why_not
from .measure import MIN_ROUNDS
from .products import GemmOptions
from .report import ToolError, print_table, tracked, write_json

if TYPE_CHECKING:
    from .gpu.tune import Tuned, Wanted

HELP = "measure which kernels are the fastest on this GPU, and take them"

DESCRIPTION = """\
Time every kernel that could be the fastest for each product, check it, and keep the best in a table
that products follow on this GPU from the next process on. Products that are not in it are planned
as before: the table is for exactly these M, N, K, dtypes and scales, of contiguous matrices.

--product says which one: gemm(a, b), gemm() that casts its a, ops.gated_gemm(), grouped_gemm() of
Rows (of equal sizes), Masked or Depth (M,N,K: K rows were cast), or gemm_weight_only().

  octofold tune --suite deepseek-v3
  octofold tune --shape 300,4096,7168 --shape 64,4096,7168 --granularity channel,channel
  octofold tune --shape 4096,24576,1536 --sustained
  octofold tune --product rows --groups 32 --shape 8192,4096,7168
  octofold tune --show
  octofold tune --clear

Take a GPU that does nothing else: 2 to 5 seconds a shape, and the kernels' compilation once. With
--sustained the best are timed back to back until the chip's power limits them, as in training and
in long prompts: half a minute a shape.
"""

PRODUCTS = ("gemm", "cast", "gated", "rows", "masked", "depth", "weight-only")
DEFAULT_ROUNDS = 13
DEFAULT_SUSTAINED_ROUNDS = 3
DEFAULT_LEAST_GAIN = 0.01


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tune",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gemm_options.add_shapes(parser, "a named set of shapes")
    gemm_options.add_kind(parser)
    parser.add_argument("--product", choices=PRODUCTS, default="gemm", help="default: %(default)s")
    parser.add_argument(
        "--groups",
        metavar="COUNT",
        type=gemm_options.whole_number(1),
        default=1,
        help="of rows, masked and depth, and of gated products (default: %(default)s)",
    )
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
    shapes = arguments.shape or SUITES.get(arguments.suite, ())
    if arguments.show or arguments.clear:
        if shapes:
            raise ToolError("--show and --clear measure nothing: leave --shape and --suite out")
        (show_table if arguments.show else clear_table)()
    elif not shapes:
        raise ToolError("name what to measure: --shape M,N,K or --suite")
    else:
        run_tune(arguments, shapes)


def run_tune(arguments: argparse.Namespace, shapes: Sequence[Shape]) -> None:
    check_outputs(arguments.json)
    if reason := why_not():
        raise ToolError(f"no GPU to measure on: {reason}")
    rounds = DEFAULT_SUSTAINED_ROUNDS if arguments.sustained else DEFAULT_ROUNDS
    options = GemmOptions(
        dtypes=arguments.dtype,
        granularities=arguments.granularity,
        out_dtype=arguments.out_dtype,
        rounds=arguments.rounds or rounds,
        fast_accumulation=arguments.fast_accumulation,
    )
    if not arguments.dry_run and tuning.table().file is None:
        raise ToolError(
            "there is no place for a table: name a folder in OCTOFOLD_CACHE_DIR, and leave "
            "OCTOFOLD_TUNING unset"
        )
    wanted = wanted_of(arguments, options)
    results = measure(shapes, wanted, sustained=arguments.sustained)
    keep = [result for result in results if result.gain >= 1 + arguments.least_gain]
    show(results, keep, f"{arguments.product}: {title(options)}")
    if arguments.json is not None:
        document = [dataclasses.asdict(result) for result in results]
        kind = {"options": dataclasses.asdict(options), "sustained": arguments.sustained}
        write_json(arguments.json, {**kind, "results": document})
    if arguments.dry_run:
        return
    file = tuning.write([result.choice(wanted, planned=result not in keep) for result in results])
    print(f"{len(results)} products in {file}, {len(keep)} by another kernel than planned")


def wanted_of(arguments: argparse.Namespace, options: GemmOptions) -> "Wanted":
    from .gpu.tune import Wanted

    if arguments.groups > 1 and arguments.product not in ("rows", "masked", "depth", "gated"):
        raise ToolError(f"--groups: there are none of --product {arguments.product}")
    return Wanted(options, arguments.product, arguments.groups)


def measure(shapes: Sequence[Shape], wanted: "Wanted", *, sustained: bool) -> "list[Tuned]":
    import torch
    from octofold._timing import GRAPH, SUSTAINED

    from .gpu.tune import tune

    gpu = octofold.info().gpus[0]
    if (gpu.compute_major, gpu.compute_minor) != (9, 0):
        raise ToolError(
            "only Hopper (9.0) has kernels to choose among so far, and this GPU is "
            f"{gpu.compute_major}.{gpu.compute_minor}"
        )
    last = SUSTAINED if sustained else None
    return [
        tune(shape, wanted, gpu.multiprocessors, GRAPH, torch.device("cuda"), last=last)
        for shape in tracked("tune", shapes)
    ]


def show(results: "Sequence[Tuned]", kept: "Sequence[Tuned]", kind: str) -> None:
    columns = ["M,N,K", "planned\nµs", "\n±", "fastest\nµs", "\n±", "gain", "kernel"]
    rows = [
        [
            f"{result.m},{result.n},{result.k}",
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
    print_table(f"tune {kind}", columns, rows, totals)


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
