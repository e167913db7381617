"""The GPU that the one at hand computes as."""

import os

import torch
from octofold import tuning


def architecture() -> str:
    """The architecture that kernels are compiled for: "sm_90a", "sm_89"; OCTOFOLD_TARGET's if that
    is set. "" if there is neither a GPU nor a target."""
    name = os.environ.get("OCTOFOLD_TARGET", "")
    if not name and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        name = f"sm_{major}{minor}"
    return "sm_90a" if name == "sm_90" else name


def is_hopper() -> bool:
    """True if products take Hopper's own kernels, and no others."""
    return architecture() == "sm_90a"


def candidate_names(operation: str, *phrases: str) -> list[str]:
    """The names of the kernels that compute products here which have these phrases in their text;
    sizes do not matter to them."""
    problem = ", ".join([f"{operation}: m 128, n 128, k 128", *phrases])
    return list(tuning.candidates(problem, architecture()))


def has_bfloat16() -> bool:
    """True if products of bfloat16 are not refused."""
    return int(architecture().removeprefix("sm_").removesuffix("a")) >= 80


def does_what_hopper_does(device: str) -> bool:
    """Also what other GPUs have no kernels for, as the CPU does: products that wait for rows or
    cast them, FP8 scores."""
    return device == "cpu" or is_hopper()
