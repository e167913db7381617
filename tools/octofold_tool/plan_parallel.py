"""octofold plan-parallel: bytes and time of a training step on many GPUs, on paper."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .parallel.links import NETWORK, NETWORK_LATENCY, NVLINK, NVLINK_LATENCY, links_of
from .report import ToolError, check_writable, require, tracked, write_json

if TYPE_CHECKING:
    from .parallel.rates import Rates
    from .parallel.steps import Planner

HELP = "which parallel scheme for a model on many GPUs: bytes and time, on paper"

DESCRIPTION = """\
Reckon the memory, the bytes on NVLink and between hosts, and the time of a training step for each
way to spread a model over GPUs: data parallelism with sharded weights (FSDP), tensor and sequence
parallelism inside a host (TP), experts over hosts (EP), micro batches, recomputation. Three ways
stand beside each other: FP8 (cast, then send codes), FP8 products alone, and BF16. What does not
divide is left out, and counted by its reason.

The single GPU's rates are measured ones: the package's (an H200; the output says when and how), a
file's, or this GPU's (--rates measure). Links have what their makers name, unless you say less, or
what you have measured (--links).
Formulas and limits: docs/distributed/on-paper.md.

  octofold plan-parallel --model llama-3-70b --gpus 64
  octofold plan-parallel --model deepseek-v3 --gpus 1024 --nvlink 720 --network 360 --json plan.json
  octofold plan-parallel --model my-model/config.json --gpus 8 --rates measure
"""

MEASURE: Final = "measure"
WIRE_BYTES: Final = {"float32": 4.0, "bfloat16": 2.0}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan-parallel",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="llama-3-70b, deepseek-v3, or the path of a config.json")
    add("--gpus", required=True, metavar="COUNT", type=count, help="of the whole run")
    add("--gpus-per-host", metavar="COUNT", type=count, default=8, help="default: %(default)s")
    add(
        "--nvlink",
        metavar="GB/s",
        type=number,
        default=NVLINK,
        help="of a GPU, both directions together (default: %(default)g)",
    )
    add(
        "--network",
        metavar="Gb/s",
        type=number,
        default=NETWORK,
        help="of a GPU between hosts, each way, in bits (default: %(default)g)",
    )
    add(
        "--nvlink-latency",
        metavar="µs",
        type=number,
        default=NVLINK_LATENCY,
        help="of one step of an exchange inside a host (default: %(default)g)",
    )
    add(
        "--network-latency",
        metavar="µs",
        type=number,
        default=NETWORK_LATENCY,
        help="the same between hosts (default: %(default)g)",
    )
    add(
        "--links",
        metavar="FILE",
        type=Path,
        help="results of bench/gpu/parallel_links.py: rates and latencies of gathers, reduce-"
        "scatters and all-to-alls inside a host, instead of --nvlink and --nvlink-latency",
    )
    add(
        "--memory",
        metavar="GB",
        type=number,
        default=80.0,
        help="of a GPU (default: %(default)g)",
    )
    add(
        "--tokens",
        metavar="TOKENS",
        type=count,
        default=16384,
        help="of a GPU in a step (default: %(default)s)",
    )
    add("--sequence", metavar="TOKENS", type=count, default=4096, help="default: %(default)s")
    add(
        "--state",
        choices=("fp32", "bf16-moments", "bf16"),
        default="fp32",
        help="parameters, gradients and AdamW's moments: all FP32, 16 bytes a parameter (default); "
        "moments in BF16, 12; all in BF16, 8",
    )
    add(
        "--gradients",
        choices=tuple(WIRE_BYTES),
        default="float32",
        help="in which the gradients of weights are summed over GPUs (default: %(default)s)",
    )
    add(
        "--outputs",
        choices=tuple(WIRE_BYTES),
        default="bfloat16",
        help="in which tensor parallelism sums outputs (default: %(default)s)",
    )
    add(
        "--overlap-tensor",
        action="store_true",
        help="let tensor parallelism's exchanges run beside its products",
    )
    add(
        "--rates",
        metavar="FILE",
        default=None,
        help=f"JSON of an earlier run, or '{MEASURE}': the GPU at hand (default: the package's)",
    )
    add("--json", metavar="FILE", type=Path, help="write (over) this JSON file")
    add("--top", metavar="COUNT", type=count, default=5, help="schemes (default: %(default)s)")
    parser.set_defaults(run=run)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    require("rich", "tool")
    if arguments.json is not None:
        check_writable(arguments.json)
    from .parallel import tables
    from .parallel.steps import ranked
    from .parallel.ways import FP8

    planner = planner_of(arguments, rates_of(arguments.rates))
    planned, left_out = planner.planned()
    if not planned:
        why = "; ".join(f"{reason} ({times})" for reason, times in left_out.most_common())
        raise ToolError(f"--gpus {arguments.gpus}: no scheme divides: {why}")
    best = ranked(planned, FP8)[: arguments.top]
    tables.show(planner, planned, best, left_out)
    if arguments.json is not None:
        write_json(arguments.json, tables.document(planner, best, left_out))


def rates_of(name: str | None) -> "Rates":
    """The package's, a file's, or measured here."""
    from .parallel.rates import COMMITTED, load_rates

    if name != MEASURE:
        return load_rates(COMMITTED if name is None else Path(name))
    return measured_rates()


def measured_rates() -> "Rates":
    from .gpu.device import why_not

    if (reason := why_not()) is not None:
        raise ToolError(f"--rates {MEASURE}: no GPU to measure on: {reason}")
    from .parallel.measure_rates import measure  # imports torch

    return measure(lambda products: tracked("products", products))


def planner_of(arguments: argparse.Namespace, rates: "Rates") -> "Planner":
    """Of checked arguments, in bytes and seconds."""
    from .parallel.measured_links import load_links
    from .parallel.memory import STATES
    from .parallel.models import load_model
    from .parallel.steps import Planner, Settings

    gpus, per_host = arguments.gpus, arguments.gpus_per_host
    if gpus > per_host and gpus % per_host:
        raise ToolError(f"--gpus: expected whole hosts of {per_host}, got {gpus}")
    links = links_of(
        per_host,
        *(arguments.nvlink, arguments.network),
        *(arguments.nvlink_latency, arguments.network_latency),
        None if arguments.links is None else load_links(arguments.links),
    )
    settings = Settings(
        gpus=gpus,
        tokens=arguments.tokens,
        sequence=arguments.sequence,
        state=STATES[arguments.state],
        gradient_bytes=WIRE_BYTES[arguments.gradients],
        output_bytes=WIRE_BYTES[arguments.outputs],
        overlap_tensor=arguments.overlap_tensor,
        memory=arguments.memory * 1e9,
    )
    return Planner(load_model(arguments.model), links, rates, settings)
