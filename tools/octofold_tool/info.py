"""octofold info: what this machine can do, and why not more."""

import argparse
import dataclasses
import json

import octofold

from .report import print_table
from .verdict import checks, verdict, versions

SCALED = "scales of granularity tensor, channel, 1x128 and 128x128, each"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "info",
        help="show what works on this machine, and why not more",
        description="Show the version, the CPU backend, the NVIDIA driver, the run-time compiler "
        "(NVRTC) and each GPU: what works here, and why not more. Each backend multiplies once and "
        "is held against FP64. The exit status is 1 where something is amiss.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="how each operation runs on each architecture with operands of each form",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.matrix:
        show_matrix(arguments.json)
        return
    info = octofold.info()
    found = checks(info)
    if arguments.json:
        document = dataclasses.asdict(info) | {
            "versions": versions(),
            "checks": [dataclasses.asdict(check) for check in found],
            "verdict": verdict(found),
        }
        print(json.dumps(document, indent=2))
    else:
        print(info)
        print(f"  versions  {', '.join(f'{name} {v}' for name, v in versions().items())}")
        print("Tried")
        for check in found:
            print(f"  {check.name:<8}{check.result}: {check.detail}")
            if check.advice:
                print(f"          → {check.advice}")
        print(f"Verdict: {verdict(found)}")
    if any(check.result == "amiss" for check in found):
        raise SystemExit(1)


def show_matrix(as_json: bool) -> None:
    matrix = octofold.capabilities()
    if as_json:
        print(json.dumps(dataclasses.asdict(matrix), indent=2))
        return
    head, *rows = matrix.table()
    print_table("What runs how, by compute capability", head, rows)
    for word, meaning in {**matrix.meanings, "scaled": SCALED}.items():
        print(f"{word:<12} {meaning}")
    print(matrix.at_hand)
    print("This is what operations take; `octofold info` tries a product on each GPU here.")
    operations: dict[str, dict[str, None]] = {}  # of each reason, in the matrix's order
    for row in matrix.rows:
        for support in row.support.values():
            if support.how != "none" and support.why_not:
                operations.setdefault(support.why_not, {})[row.operation] = None
    for reason, names in operations.items():
        print(f"Why no {', '.join(names)}: {reason}")
