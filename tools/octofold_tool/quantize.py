"""octofold quantize: a safetensors checkpoint with FP8 weights."""

import argparse
from pathlib import Path

import octofold

from .report import progress

HELP = "rewrite a safetensors checkpoint with FP8 linear weights"

DESCRIPTION = """\
Rewrite a safetensors checkpoint with its linear weights in DeepSeek-V3's FP8 layout: each 2-D
floating-point `*.weight` becomes F8_E4M3 with an F32 `*.weight_scale_inv` (one multiplier per
128×128 block). Everything else is copied. Files larger than memory are fine. The output appears
whole or not at all.

  octofold quantize model.safetensors model-fp8.safetensors
  octofold quantize in/model.safetensors.index.json out/model.safetensors.index.json
  octofold quantize model.safetensors out.safetensors --skip 'classifier.*'
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "quantize",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        late_epilog=default_skips,
    )
    parser.add_argument(
        "input", metavar="IN", type=Path, help="a .safetensors file or a *.safetensors.index.json"
    )
    parser.add_argument(
        "output", metavar="OUT", type=Path, help="a path of the same kind that does not exist yet"
    )
    parser.add_argument(
        "--skip",
        metavar="PATTERN",
        action="append",
        default=[],
        help="copy tensors whose name matches this glob (repeatable)",
    )
    parser.add_argument(
        "--no-default-skips", action="store_true", help="skip only what --skip names (see below)"
    )
    parser.add_argument(
        "--profile",
        default="deepgemm",
        help="whose cast rule to follow: deepgemm (default), vllm, vllm-per-token, te, torchao, "
        "torchao-tensor, deepseek, compressed-tensors or compressed-tensors-0.12",
    )
    parser.add_argument(
        "--power-of-two",
        action="store_const",
        const=True,
        help="round scales to powers of two (default: what the profile does)",
    )
    parser.set_defaults(run=run)


def default_skips() -> str:
    patterns = " ".join(octofold.default_skip_patterns())
    return f"Skipped beside, unless --no-default-skips: {patterns}"


def run(arguments: argparse.Namespace) -> None:
    with progress(f"quantizing {arguments.input.name}", bytes_=True) as advance:
        report = octofold.quantize_checkpoint(
            arguments.input,
            arguments.output,
            skip=arguments.skip,
            use_default_skips=not arguments.no_default_skips,
            profile=arguments.profile,
            power_of_two=arguments.power_of_two,
            progress=advance,
        )
    before, after = report.input_bytes / 1e6, report.output_bytes / 1e6
    share = f" ({after / before:.0%} of it)" if before else ""
    print(f"{len(report.quantized)} weights to FP8, {len(report.copied)} tensors copied")
    print(f"{before:,.1f} MB → {after:,.1f} MB{share}")
    for path in report.files:
        print(f"  {path}")
