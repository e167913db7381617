"""Parts that the commands on checkpoints share: options, and what they say of a run."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import octofold

FAMILIES = """\
Families: deepseek-v3 (128x128), finegrained-fp8 (transformers'; 128x128, tensor),
compressed-tensors (vLLM, llm-compressor; channel, tensor, 128x128, 1x128), modelopt (NVIDIA's;
channel, 128x128, and tensor beside static scales of inputs), torchao (channel, tensor, 128x128),
comfyui (single files of diffusion models; tensor).
"""


def add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        metavar="IN",
        type=Path,
        help="a folder, a .safetensors file or a *.safetensors.index.json",
    )
    parser.add_argument(
        "output", metavar="OUT", type=Path, help="a path of the same kind that does not exist yet"
    )


def add_granularity(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--granularity",
        metavar="NAME",
        help=f"granularity of the scales: tensor, channel, 1x128 or 128x128 (default: {default})",
    )


def by_reason(left_alone: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of the weights for each reason there is."""
    names: dict[str, list[str]] = {}
    for name, reason in left_alone.items():
        names.setdefault(reason, []).append(name)
    return names


def shortened(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def show(report: octofold.CheckpointReport) -> None:
    before, after = report.input_bytes / 1e6, report.output_bytes / 1e6
    share = f" ({after / before:.0%} of it)" if before else ""
    anew = f", {len(report.requantized)} of them anew" if report.requantized else ""
    print(f"{len(report.quantized)} weights to FP8{anew}, {len(report.copied)} tensors copied")
    for name, change in report.changes.items():
        error = f"by up to {change.largest_error:.2%}"
        print(f"  {name}: {change.changed:,} of {change.values:,} values changed, {error}")
    print(f"{before:,.1f} MB → {after:,.1f} MB{share}")
    for reason, names in by_reason(report.left_alone).items():
        print(f"{len(names)} left as they are, because {reason}: {shortened(names)}")
    for path in report.files:
        print(f"  {path}")
