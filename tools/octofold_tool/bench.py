"""octofold bench gemm: FP8 products beside FP32 ones, checked and timed."""

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import octofold

from .measure import interleaved_seconds, relative_error, spread
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
operands before anything is timed.

  octofold bench gemm                                 the square suite
  octofold bench gemm --suite deepseek-v3 --json deepseek.json
  octofold bench gemm --shape 1024,4096,7168 --granularity channel,channel
"""

# Relative error limits of docs/numerics.md.
ERROR_LIMITS = {"float32": 3e-4, "bfloat16": 2.5e-3, "float16": 4e-4}

CHECKED_ROWS, CHECKED_COLUMNS = 64, 512


@dataclasses.dataclass(frozen=True)
class ShapeResult:
    """D[m, n] = A[m, k] · B[n, k]ᵀ."""

    m: int
    n: int
    k: int
    milliseconds_fp8: float
    milliseconds_float32: float
    gflops_fp8: float
    gflops_float32: float
    spread_fp8: float  # half the quartile range over the median
    ratio: float  # FP32's time over FP8's: above 1, FP8 is faster
    relative_error: float
    rounds: int


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser(
        "bench", help="measure speed and error of matrix products", description="Measure."
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
        "--rounds", type=parse_positive, default=9, help="per shape (default: %(default)s)"
    )
    parser.add_argument(
        "--max-seconds",
        metavar="S",
        type=float,
        default=2.0,
        help="leave out shapes of which one product takes longer, by estimate; they are named "
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


def parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 3:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 3, got '{text}'")
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    for path in filter(None, (arguments.json, arguments.png)):
        check_writable(path)
    if arguments.png is not None:
        require("matplotlib", "tool")
    shapes: Sequence[Shape] = arguments.shape or SUITES[arguments.suite]
    chosen = affordable(shapes, arguments)

    results = [measure(shape, arguments) for shape in tracked("bench gemm", chosen)]

    title = (
        f"{' × '.join(arguments.dtype)}, scales {' × '.join(arguments.granularity)}, "
        f"{arguments.out_dtype} out"
    )
    show(title, results)
    left_out = [shape for shape in shapes if shape not in chosen]
    if left_out:
        names = " ".join(",".join(map(str, shape)) for shape in left_out)
        console().print(
            f"Left out, more than {arguments.max_seconds:g} s a product by estimate: {names}",
            soft_wrap=True,
        )
    if arguments.json is not None:
        write_json(arguments.json, document(arguments, results, left_out))
    if arguments.png is not None:
        write_png(arguments.png, chart(title, results))


def affordable(shapes: Sequence[Shape], arguments: argparse.Namespace) -> list[Shape]:
    """The shapes whose product will take no longer than --max-seconds, extrapolated from one."""
    probe = measure((512, 512, 512), arguments)
    seconds_per_flop = 1e-9 / min(probe.gflops_fp8, probe.gflops_float32)
    chosen = [
        shape for shape in shapes if 2 * np.prod(shape) * seconds_per_flop <= arguments.max_seconds
    ]
    if not chosen:
        raise ToolError(
            f"every shape would take more than {arguments.max_seconds:g} s a product; "
            "allow more with --max-seconds"
        )
    return chosen


def measure(shape: Shape, arguments: argparse.Namespace) -> ShapeResult:
    """Check one product, then time it."""
    m, n, k = shape
    random = np.random.default_rng()
    a = random.standard_normal((m, k), np.float32)
    b = random.standard_normal((n, k), np.float32)
    a8, b8 = (
        octofold.quantize(x, dtype=dtype, granularity=granularity)
        for x, dtype, granularity in zip(
            (a, b), arguments.dtype, arguments.granularity, strict=True
        )
    )
    out = octofold.gemm(a8, b8, out_dtype=arguments.out_dtype)
    error = check(shape, a8, b8, out)

    calls = (lambda: octofold.gemm(a8, b8, out=out), lambda: a @ b.T)
    budget = 10 * arguments.max_seconds
    fp8, float32 = interleaved_seconds(calls, arguments.rounds, budget)
    fp8_median, float32_median = statistics.median(fp8), statistics.median(float32)
    gflop = 2e-9 * m * n * k
    return ShapeResult(
        m=m,
        n=n,
        k=k,
        milliseconds_fp8=fp8_median * 1e3,
        milliseconds_float32=float32_median * 1e3,
        gflops_fp8=gflop / fp8_median,
        gflops_float32=gflop / float32_median,
        spread_fp8=spread(fp8),
        ratio=float32_median / fp8_median,
        relative_error=error,
        rounds=len(fp8),
    )


def check(shape: Shape, a8: octofold.ScaledTensor, b8: octofold.ScaledTensor, out: Any) -> float:
    """Relative error against FP64; of a product that is large, on random rows and columns of it.

    The output is written afresh over NaN, so that nothing that is left out can pass.
    """
    out[...] = np.nan
    octofold.gemm(a8, b8, out=out)
    actual = out.astype(np.float32)
    if not np.isfinite(actual).all():
        raise ToolError(f"{shape}: the product has elements that are not finite: a fault of ours")
    random = np.random.default_rng()
    rows = random.permutation(shape[0])[:CHECKED_ROWS]
    columns = random.permutation(shape[1])[:CHECKED_COLUMNS]
    expected = (
        a8.dequantize()[rows].astype(np.float64) @ b8.dequantize()[columns].astype(np.float64).T
    )
    error = relative_error(actual[np.ix_(rows, columns)], expected)
    few = 2**-8 if expected.size < 256 else 0.0  # a few roundings do not average: numerics.md
    limit = ERROR_LIMITS[str(out.dtype)] + few
    if error > limit:
        raise ToolError(f"{shape}: relative error {error:.1e} exceeds {limit:.1e}: a fault of ours")
    return error


def show(title: str, results: Sequence[ShapeResult]) -> None:
    columns = (
        "M,N,K", "FP8 ms", "±", "FP8 GFLOPS", "FP32 ms", "FP32 GFLOPS", "FP32/FP8 time",
        "rel. error",
    )  # fmt: skip
    rows = [
        (
            f"{result.m},{result.n},{result.k}",
            f"{result.milliseconds_fp8:.3f}",
            f"{result.spread_fp8:.0%}",
            f"{result.gflops_fp8:.1f}",
            f"{result.milliseconds_float32:.3f}",
            f"{result.gflops_float32:.1f}",
            f"{result.ratio:.2f}",
            f"{result.relative_error:.1e}",
        )
        for result in results
    ]
    print_table(f"gemm on the CPU reference backend: {title}", columns, rows)


def document(
    arguments: argparse.Namespace, results: Sequence[ShapeResult], left_out: Sequence[Shape]
) -> dict[str, Any]:
    return {
        "operation": "gemm",
        "dtypes": arguments.dtype,
        "granularities": arguments.granularity,
        "out_dtype": arguments.out_dtype,
        "results": [dataclasses.asdict(result) for result in results],
        "left_out": left_out,
    }


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
    axis.legend(frameon=False)
    return figure
