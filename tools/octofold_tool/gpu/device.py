"""Tells if there is a GPU here that Octofold has kernels for, and torch to drive it."""

import argparse
import importlib.util

import octofold

from ..report import ToolError


def why_not() -> str | None:
    """Why the tool computes on the CPU here; None where it need not."""
    info = octofold.info()
    if not info.gpus:
        return info.driver.detail if not info.driver.available else "the driver shows no GPU"
    backend = info.gpus[0].backend
    if not backend.available:
        return backend.detail
    # torch takes a second to import, so it is only looked for until here.
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed, through which the tool uses a GPU"
    import torch

    return None if torch.cuda.is_available() else f"PyTorch {torch.__version__} sees no GPU"


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto (default): the GPU, where there is one with kernels and torch to drive it",
    )


def choose_device(name: str) -> str:
    """ "cpu" or "cuda"; "auto" is the GPU where Octofold and torch can use one."""
    reason = why_not() if name != "cpu" else None
    if name == "cuda" and reason is not None:
        raise ToolError(f"no GPU to measure on: {reason}")
    return "cpu" if name == "cpu" or reason is not None else "cuda"
