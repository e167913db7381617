"""As which GPU the one at hand computes."""

import os

import torch
from octofold import tuning


def architecture() -> str:
    """As kernels are compiled for it: "sm_90a", "sm_89"; of OCTOFOLD_TARGET where that is set. ""
    where there is neither."""
    name = os.environ.get("OCTOFOLD_TARGET", "")
    if not name and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        name = f"sm_{major}{minor}"
    return "sm_90a" if name == "sm_90" else name


def is_hopper() -> bool:
    """Whether products take Hopper's own kernels, and no others."""
    return architecture() == "sm_90a"


def candidate_names(problem: tuning.Problem) -> tuple[str, ...]:
    """Of the kernels that compute the product here."""
    return tuning.candidates(problem, architecture())


def does_what_hopper_does(device: str) -> bool:
    """Also what other GPUs have no kernels for, as the CPU does: products that wait for rows or
    cast them, FP8 scores."""
    return device == "cpu" or is_hopper()
