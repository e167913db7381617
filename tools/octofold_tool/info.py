"""octofold info: what this machine can do, and why not more."""

import argparse
import dataclasses
import json

import octofold

HELP = "show what works on this machine, and why not more"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "info",
        help=HELP,
        description="Show the version, the CPU backend, the NVIDIA driver, the run-time compiler "
        "(NVRTC) and each GPU: what works here, and why not more.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    info = octofold.info()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(info), indent=2))
    else:
        print(info)
