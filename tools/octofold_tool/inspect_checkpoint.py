"""octofold inspect: what is in a checkpoint."""

import argparse
import dataclasses
import json
from collections import Counter
from pathlib import Path

import octofold

from .report import print_table

DESCRIPTION = """\
Read the headers of a safetensors checkpoint: the family whose layout it has, how many weights are
FP8 (or MXFP4, NVFP4, MXFP8) and with which scales, and what is not. No data is read.

  octofold inspect MODEL_DIR
  octofold inspect flux-fp8.safetensors --tensors
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "inspect", help="show which parts of a checkpoint are FP8, and how", description=DESCRIPTION
    )
    parser.add_argument(
        "input",
        metavar="PATH",
        type=Path,
        help="a folder, a .safetensors file or a *.safetensors.index.json",
    )
    parser.add_argument("--tensors", action="store_true", help="list every weight and tensor")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    contents = octofold.inspect_checkpoint(arguments.input)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(contents), indent=2, default=str))
        return
    family = contents.family or "not quantized to FP8"
    print(f"{arguments.input}: {family}, {contents.bytes / 1e6:,.1f} MB in {files(contents)}")
    for kind, count in Counter(map(kind_of, contents.weights)).most_common():
        print(f"  {count} weights in {kind}")
    for dtype, count in Counter(tensor.dtype for tensor in contents.others).most_common():
        print(f"  {count} other tensors, {dtype}")
    if arguments.tensors:
        show_tensors(contents)


def files(contents: octofold.CheckpointContents) -> str:
    count = len(contents.files)
    return "one file" if count == 1 else f"{count} files"


def kind_of(weight: octofold.CheckpointWeight) -> str:
    """ "FP8, F8_E4M3, scales 128x128 (F32), static inputs": for people."""
    scale = "no scales"
    if weight.scale is not None:
        scale = f"scales {weight.granularity} ({weight.scale.dtype})"
    words = [weight.format.upper(), weight.codes.dtype, scale]
    if weight.second_scale is not None:
        words.append(f"one more for all ({weight.second_scale.dtype})")
    if weight.input_scale is not None:
        words.append("static inputs")
    if weight.full_precision:
        words.append("to multiply in high precision")
    return ", ".join(words)


def shape_of(scale: octofold.CheckpointTensor | None) -> str:
    return "" if scale is None else f", scales of shape {[*scale.shape]}"


def show_tensors(contents: octofold.CheckpointContents) -> None:
    rows = [
        [weight.name, "×".join(map(str, weight.shape)), kind_of(weight) + shape_of(weight.scale)]
        for weight in contents.weights
    ]
    rows += [
        [tensor.name, "×".join(map(str, tensor.shape)) or "scalar", tensor.dtype]
        for tensor in contents.others
    ]
    print_table("", ["tensor", "shape", "type"], rows)
