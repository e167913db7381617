"""octofold bench gemm: FP8 products beside FP32 ones, checked and timed."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .measure import MIN_ROUNDS
from .products import ERROR_LIMITS, Costs, GemmOptions, ShapeResult, measure, probe
from .report import (
    COLORS,
    ToolError,
    check_writable,
    console,
    new_figure,
    print_table,
    require,
    tracked,
    write_json,
    write_png,
)
from .suites import SUITES, Shape

DESCRIPTION = """\
Multiply random normal matrices, cast to FP8, and time that beside NumPy's FP32 product (OpenBLAS):
interleaved rounds, medians. Each output is checked against the FP64 product of the dequantized
operands (at random places, if it is large) before anything is timed. Shapes that would take too
long are left out, and named.

  octofold bench gemm                                 the square suite
  octofold bench gemm --suite deepseek-v3 --json deepseek.json
  octofold bench gemm --shape 1024,4096,7168 --granularity channel,channel
"""

HELP = "measure speed and error of matrix products"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser(
        "bench",
        help=HELP,
        description="Measure one operation on this machine: its speed beside a peer's, and its "
        "error. For example: octofold bench gemm --suite square",
    )
    operations = bench.add_subparsers(metavar="OPERATION", required=True)
    parser = operations.add_parser(
        "gemm",
        help="FP8 products beside FP32 ones",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        "--suite", choices=sorted(SUITES), default="square", help="default: %(default)s"
    )
    shapes.add_argument(
        "--shape",
        metavar="M,N,K",
        type=parse_shape,
        action="append",
        help="a shape of your own (repeatable)",
    )
    parser.add_argument(
        "--dtype",
        metavar="A,B",
        type=lambda text: parse_pair(text, "e4m3"),
        default=("e4m3", "e4m3"),
        help="FP8 formats of A and B: e4m3 or e5m2 (default: e4m3,e4m3)",
    )
    parser.add_argument(
        "--granularity",
        metavar="A,B",
        type=lambda text: parse_pair(text, "1x128"),
        default=("1x128", "128x128"),
        help="tensor,tensor · channel,channel · 1x128,128x128 (default) · 1x128,1x128",
    )
    parser.add_argument(
        "--out-dtype", choices=sorted(ERROR_LIMITS), default="bfloat16", help="default: %(default)s"
    )
    parser.add_argument(
        "--rounds",
        metavar="COUNT",
        type=parse_rounds,
        default=9,
        help=f"per shape, {MIN_ROUNDS} or more; slow shapes stop at {MIN_ROUNDS} "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--max-seconds",
        metavar="S",
        type=float,
        default=4.0,
        help="leave out, and name, shapes of which one FP8 and one FP32 product take longer "
        "together, by estimate "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    parser.add_argument("--png", metavar="FILE", type=Path, help="write (over) this chart")
    parser.set_defaults(run=run)


def parse_shape(text: str) -> Shape:
    sizes = text.split(",")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected M,N,K, each at least 1, got '{text}'")
    m, n, k = map(int, sizes)
    return m, n, k


def parse_pair(text: str, example: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise argparse.ArgumentTypeError(f"expected two, such as {example},{example}, got '{text}'")
    return first, second


def parse_rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_ROUNDS:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {MIN_ROUNDS}, got '{text}'"
        )
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    for path in filter(None, (arguments.json, arguments.png)):
        check_writable(path)
    if arguments.png is not None:
        require("matplotlib", "tool")
    options = GemmOptions(
        dtypes=arguments.dtype,
        granularities=arguments.granularity,
        out_dtype=arguments.out_dtype,
        rounds=arguments.rounds,
        max_seconds=arguments.max_seconds,
    )
    shapes: Sequence[Shape] = arguments.shape or SUITES[arguments.suite]
    chosen = choose(shapes, probe(options), options)

    results = [measure(shape, options) for shape in tracked("bench gemm", chosen)]

    show(title(options), results)
    left_out = [shape for shape in shapes if shape not in chosen]
    if left_out:
        names = " ".join(",".join(map(str, shape)) for shape in left_out)
        console().print(f"Left out, {options.max_seconds:g} s a round or more: {names}")
    if arguments.json is not None:
        write_json(
            arguments.json,
            {
                "operation": "gemm",
                "options": dataclasses.asdict(options),
                "results": [dataclasses.asdict(result) for result in results],
                "left_out": left_out,
            },
        )
    if arguments.png is not None:
        write_png(arguments.png, chart(title(options), results))


def choose(shapes: Sequence[Shape], costs: Costs, options: GemmOptions) -> list[Shape]:
    """The shapes of which a round takes less than --max-seconds; says how long they will take."""
    chosen = [shape for shape in shapes if costs.round(shape) < options.max_seconds]
    if not chosen:
        raise ToolError(
            f"every shape would take {options.max_seconds:g} s a round or more; "
            "allow more with --max-seconds"
        )
    seconds = sum(costs.measurement(shape, options) for shape in chosen)
    left_out = f", {len(shapes) - len(chosen)} too long" if len(shapes) > len(chosen) else ""
    console(stderr=True).print(
        f"{len(chosen)} of {len(shapes)} shapes in about {seconds:.0f} s{left_out}", style="dim"
    )
    return chosen


def title(options: GemmOptions) -> str:
    return (
        f"{' × '.join(options.dtypes)}, scales {' × '.join(options.granularities)}, "
        f"{options.out_dtype} out"
    )


def show(title: str, results: Sequence[ShapeResult]) -> None:
    columns = (
        "M,N,K", "FP8\nms", "\n±", "\nGFLOPS", "FP32\nms", "\n±", "\nGFLOPS", "time\nFP32/FP8",
        "relative\nerror",
    )  # fmt: skip
    rows = [
        (
            f"{result.m},{result.n},{result.k}",
            f"{result.milliseconds_fp8:.2f}",
            f"{result.spread_fp8:.0%}",
            f"{result.gflops_fp8:.1f}",
            f"{result.milliseconds_float32:.2f}",
            f"{result.spread_float32:.0%}",
            f"{result.gflops_float32:.1f}",
            f"{result.ratio:.2f}",
            f"{result.relative_error:.1e}",
        )
        for result in results
    ]
    print_table(f"gemm on the CPU reference backend: {title}", columns, rows)


def chart(title: str, results: Sequence[ShapeResult]) -> Any:
    """Rates of both, shape by shape."""
    figure, (axis,) = new_figure(1, f"gemm: {title}")
    positions = np.arange(len(results))
    axis.bar(positions - 0.2, [r.gflops_fp8 for r in results], 0.4, color=COLORS[0], label="FP8")
    axis.bar(
        positions + 0.2,
        [r.gflops_float32 for r in results],
        0.4,
        color=COLORS[1],
        label="FP32 (NumPy)",
    )
    axis.set_ylabel("GFLOPS")
    names = [f"{r.m},{r.n},{r.k}" for r in results]
    axis.set_xticks(positions, names, rotation=45, ha="right", fontsize="small")
    # Above the axes, where no bar can be.
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return figure
