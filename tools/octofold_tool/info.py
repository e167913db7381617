"""octofold info: what this machine can do, and why not more."""

import argparse
import dataclasses
import json

import octofold

from .report import print_table

HELP = "show what works on this machine, and why not more"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "info",
        help=HELP,
        description="Show the version, the CPU backend, the NVIDIA driver, the run-time compiler "
        "(NVRTC) and each GPU: what works here, and why not more.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="how each operation runs on each architecture with each granularity of scales, and "
        "whether it does on the GPUs here",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.matrix:
        show_matrix(arguments.json)
        return
    info = octofold.info()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(info), indent=2))
    else:
        print(info)


def show_matrix(as_json: bool) -> None:
    matrix = octofold.capabilities()
    if as_json:
        print(json.dumps(dataclasses.asdict(matrix), indent=2))
        return
    columns = ["operation", "scales", *matrix.rows[0].architectures, *matrix.gpus.values()]
    rows = [matrix.cells(row) for row in matrix.rows]
    print_table("What runs how, by compute capability", columns, rows)
    for how, meaning in matrix.meanings.items():
        print(f"{how:<12} {meaning}")
    if matrix.untried:
        print(f"Nothing was tried: {matrix.untried}; the matrix is what would work.")
    reasons = {support.why_not for row in matrix.rows for support in row.architectures.values()}
    for reason in sorted(reasons - {""}):
        print(f"Why not: {reason}")
