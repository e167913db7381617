"""octofold quantize: a safetensors checkpoint with FP8 weights."""

import argparse

import octofold

from .checkpoint_options import FAMILIES, add_granularity, add_paths, show
from .report import progress

DESCRIPTION = f"""\
Rewrite a safetensors checkpoint with its linear weights in FP8: each 2-D floating-point `*.weight`
becomes F8_E4M3 with F32 scales beside it, named as the family has them (deepseek-v3: one multiplier
per 128×128 block in `*.weight_scale_inv`). Everything else is copied. Of a folder config.json, the
tokenizer, folders below and the rest come along, so that a server can be pointed at OUT.
Checkpoints larger than memory are fine. The output appears whole or not at all.

What the libraries of the family would not read right is left as it is and named, or refused before
anything is written. Of a pipeline of Diffusers each model is taken by itself.

  octofold quantize MODEL_DIR OUT_DIR --family compressed-tensors
  octofold quantize model.safetensors model-fp8.safetensors
  octofold quantize in/model.safetensors.index.json out/model.safetensors.index.json
  octofold quantize MODEL_DIR OUT_DIR --skip '*.classifier.*'

{FAMILIES}"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "quantize",
        help="rewrite a safetensors checkpoint with FP8 linear weights",
        description=DESCRIPTION,
        late_epilog=default_skips,
    )
    add_paths(parser)
    parser.add_argument(
        "--family", default="deepseek-v3", help="whose layout to write (default: %(default)s)"
    )
    add_granularity(parser, "the first that the family has")
    parser.add_argument(
        "--rule",
        metavar="NAME",
        default="deepgemm",
        help=f"whose cast to follow: {', '.join(octofold.Rule)} (default: %(default)s)",
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
        "--power-of-two",
        action="store_true",
        help="round scales to powers of two (default: as the rule does); give --granularity too",
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
            _format(arguments),
            family=arguments.family,
            skip=arguments.skip,
            use_default_skips=not arguments.no_default_skips,
            progress=advance,
        )
    show(report)


def _format(arguments: argparse.Namespace) -> octofold.Format | str:
    granularity, rule = arguments.granularity, arguments.rule
    if not arguments.power_of_two:
        return f"{granularity or ''} {rule}"
    if granularity is None:
        raise octofold.InvalidArgumentError(
            "quantize: argument '--granularity': expected one beside --power-of-two, got none"
        )
    return octofold.Format(granularity=granularity, rule=rule, power_of_two=True)
