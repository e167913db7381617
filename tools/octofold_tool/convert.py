"""octofold convert: an FP8 checkpoint from one family to another."""

import argparse
import dataclasses
import json

import octofold

from .checkpoint_options import FAMILIES, add_granularity, add_paths, show
from .report import progress

DESCRIPTION = f"""\
Rewrite an FP8 checkpoint with the names, shapes and config of another family. Codes stay what they
are wherever the family's scales can say the same; other weights are cast anew, and named. Weights
in MXFP4, NVFP4 and MXFP8 become FP8 with the values that they have, and where that cannot be it
says how many change. What the family has no place for is left out, and named.

  octofold convert DEEPSEEK_DIR OUT_DIR --to compressed-tensors
  octofold convert flux-fp8.safetensors out.safetensors --to deepseek-v3

{FAMILIES}"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "convert",
        help="rewrite an FP8 checkpoint in the layout of another family",
        description=DESCRIPTION,
    )
    add_paths(parser)
    parser.add_argument("--to", metavar="FAMILY", required=True, help="whose layout to write")
    add_granularity(parser, "the weights' own, where the family has it, or one that is exact")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    with progress(f"converting {arguments.input.name}", bytes_=True) as advance:
        report = octofold.convert_checkpoint(
            arguments.input,
            arguments.output,
            arguments.to,
            granularity=arguments.granularity,
            progress=advance,
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report), indent=2, default=str))
        return
    show(report)
