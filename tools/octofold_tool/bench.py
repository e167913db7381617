"""octofold bench: matrix products checked and timed, on the GPU where there is one."""

import argparse
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import cpu_bench, gemm_options
from .accuracy import command as accuracy
from .gemm_options import SUITES, Shape
from .gpu.device import add_device, choose_device
from .measure import MIN_ROUNDS
from .products import GemmOptions
from .report import ToolError, check_writable, console, require, write_json, write_png

if TYPE_CHECKING:
    from .cpu_bench import CpuReport
    from .gpu.bench import GpuReport

DESCRIPTION = """\
Multiply random normal matrices, cast to FP8: medians of interleaved rounds. Each output is checked
against the FP64 product of the dequantized operands (at random places, if it is large) before
anything is timed.

On a GPU, beside cuBLASLt's FP8 products (with the same scales; with one per tensor and no
promotion) and BF16, all as torch offers them, and DeepGEMM where it is installed: CUDA graphs over
operands larger than the L2 cache, and the share of the limit that memory and tensor cores leave,
measured in the same run.

On the CPU, beside NumPy's FP32 product (OpenBLAS). Shapes that would take too long are left out,
and named.

  octofold bench gemm                                 deepseek-v3 on a GPU, square on the CPU
  octofold bench gemm --suite llama-70b --json llama.json --png llama.png
  octofold bench gemm --shape 1024,4096,7168 --granularity channel,channel
  octofold bench gemm --sweep 7168,2048 --sweep 4096,7168 --png rows.png
"""

HOST_DESCRIPTION = """\
Time what one call costs the processor on a machine with a GPU: octofold.gemm(out=) and
octofold.quantize beside torch.mm(out=) and torch._scaled_mm(out=), and layers beside
torch.nn.Linear, on matrices so small that the GPU keeps up.
"""

EVIDENCE_DESCRIPTION = """\
Show on this machine what docs/evidence.md says of others: products of all kinds drawn at random,
casts, attention and batch-invariant rows, each held against what was not computed here; then
products timed beside their peers. Nothing is looked up.

  octofold bench evidence --seconds 60 --json evidence.json
"""

DEFAULT_SUITES: Final = {"cpu": "square", "cuda": "deepseek-v3"}
MOST_ROWS: Final = 16384
SWEPT_ROWS: Final = tuple(2**i for i in range(MOST_ROWS.bit_length()))
DEFAULT_ROUNDS: Final = {"cpu": 9, "cuda": 13}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser(
        "bench",
        help="measure speed and error of matrix products, and accuracy of models",
        description="Measure one operation on this machine: its speed beside a peer's, and its "
        "error. For example: octofold bench gemm --suite square",
    )
    operations = bench.add_subparsers(metavar="OPERATION", required=True)
    add_gemm_parser(operations)
    accuracy.add_parser(operations)
    host = operations.add_parser(
        "host", help="host time of a call (needs a GPU)", description=HOST_DESCRIPTION
    )
    host.add_argument("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    host.set_defaults(run=run_host)
    evidence = operations.add_parser(
        "evidence", help="correctness, determinism and speed here", description=EVIDENCE_DESCRIPTION
    )
    add_device(evidence)
    evidence.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="what is checked for correctness takes (default: %(default)s)",
    )
    evidence.add_argument("--seed", type=int, help="of what is drawn (default: another each time)")
    evidence.add_argument("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    evidence.set_defaults(run=run_evidence)


def add_gemm_parser(operations: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = operations.add_parser(
        "gemm", help="FP8 products beside others", description=DESCRIPTION
    )
    add_device(parser)
    shapes = gemm_options.add_shapes(
        parser,
        f"default: {DEFAULT_SUITES['cuda']} on a GPU, {DEFAULT_SUITES['cpu']} on the CPU",
    )
    shapes.add_argument(
        "--sweep",
        metavar="N,K",
        type=gemm_options.sizes("N,K"),
        action="append",
        help=f"a weight, with M from 1 to {MOST_ROWS} in powers of two (repeatable): charted as "
        "lines",
    )
    gemm_options.add_kind(parser)
    parser.add_argument(
        "--rounds",
        metavar="COUNT",
        type=gemm_options.whole_number(MIN_ROUNDS),
        help=f"per shape, {MIN_ROUNDS} or more (default: {DEFAULT_ROUNDS['cuda']} on a GPU, "
        f"{DEFAULT_ROUNDS['cpu']} on the CPU, where slow shapes stop at {MIN_ROUNDS})",
    )
    parser.add_argument(
        "--max-seconds",
        metavar="S",
        type=float,
        default=4.0,
        help="CPU: leave out, and name, shapes of which one FP8 and one FP32 product take longer "
        "together, by estimate (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    parser.add_argument("--png", metavar="FILE", type=Path, help="write (over) this chart")
    parser.set_defaults(run=run_gemm)


def run_gemm(arguments: argparse.Namespace) -> None:
    check_outputs(arguments.json, arguments.png)
    device = choose_device(arguments.device)
    options = GemmOptions(
        dtypes=arguments.dtype,
        granularities=arguments.granularity,
        out_dtype=arguments.out_dtype,
        rounds=arguments.rounds or DEFAULT_ROUNDS[device],
        max_seconds=arguments.max_seconds,
        fast_accumulation=arguments.fast_accumulation,
    )
    swept = [(m, n, k) for n, k in arguments.sweep or () for m in SWEPT_ROWS]
    suite = SUITES[arguments.suite or DEFAULT_SUITES[device]]
    shapes: Sequence[Shape] = arguments.shape or swept or suite
    report = measured(shapes, options, device)
    report.show()
    if arguments.json is not None:
        write_json(arguments.json, report.document())
    if arguments.png is not None:
        write_png(arguments.png, report.chart())


def run_host(arguments: argparse.Namespace) -> None:
    check_outputs(arguments.json)
    choose_device("cuda")
    from .gpu import host  # imports torch

    times = host.run()
    host.show(times)
    if arguments.json is not None:
        results = [{"call": name, **dataclasses.asdict(time)} for name, time in times.items()]
        write_json(arguments.json, {"operation": "host", "shape": host.SHAPE, "results": results})


def run_evidence(arguments: argparse.Namespace) -> None:
    check_outputs(arguments.json)
    require("torch", "torch")
    device = choose_device(arguments.device)
    import torch

    from .gpu import evidence
    from .gpu.bench import gpu_name

    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    findings = evidence.run(torch.device(device), arguments.seconds, seed)
    evidence.show(findings, gpu_name() if device == "cuda" else "this CPU")
    if arguments.json is not None:
        found = [dataclasses.asdict(finding) for finding in findings]
        write_json(arguments.json, {"operation": "evidence", "seed": seed, "findings": found})
    for finding in findings:
        if finding.missing:
            console().print(f"Not computed: {finding.what}: {finding.missing}", style="dim")
    wrong = [f"{finding.what}: {case}" for finding in findings for case in finding.wrong]
    if wrong:
        raise ToolError(f"--seed {seed}: wrong, a fault of ours: {'; '.join(wrong)}")
    options = GemmOptions(
        ("e4m3", "e4m3"), ("1x128", "128x128"), "bfloat16", DEFAULT_ROUNDS[device], max_seconds=1.0
    )
    measured(SUITES[DEFAULT_SUITES[device]], options, device).show()


def measured(shapes: Sequence[Shape], options: GemmOptions, device: str) -> "CpuReport | GpuReport":
    if device == "cpu":
        return cpu_bench.run(shapes, options, title(options))
    from .gpu import bench as gpu_bench  # imports torch

    return gpu_bench.run(shapes, options, title(options))


def check_outputs(json: Path | None, png: Path | None = None) -> None:
    """Checks that the files asked for can be written, before a long run."""
    for path in filter(None, (json, png)):
        check_writable(path)
    if png is not None:
        require("matplotlib", "tool")


def title(options: GemmOptions) -> str:
    return (
        f"{' × '.join(options.dtypes)}, scales {' × '.join(options.granularities)}, "
        f"{options.out_dtype} out"
    )
