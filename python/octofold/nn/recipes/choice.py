"""Chooses where a layer computes in FP8: where that is not measured to be slower than BF16."""

import functools
from dataclasses import dataclass
from typing import Final

import torch

from ..._core.errors import invalid_argument
from ..._core.library import is_batch_invariant
from ..._core.recipe import Recipe

COMPUTE: Final = ("auto", "native", "weight-only")
"""How a layer computes with an FP8 weight. "weight-only": with 16-bit activations, everywhere.
"native": it casts its input, and multiplies FP8 with FP8, on GPUs that can, and on the CPU; others
have 16-bit activations. "auto": as "native", but with 16-bit activations for few tokens."""

FEW_TOKENS_OF_EXPERTS: Final = 0
"""Up to so many tokens of a call experts with FP8 weights take as they are (of linear layers:
autograd/frozen.py). Not measured: none are few."""


def require_compute(operation: str, compute: object, among: tuple[str, ...] = COMPUTE) -> None:
    """One of these words."""
    if compute not in among:
        expected = f"one of {', '.join(among)}"
        raise invalid_argument(operation, "compute", expected, repr(compute))


def is_invariant(recipe: Recipe) -> bool:
    """True if the number of tokens may not decide how they are computed."""
    return recipe.batch_invariant or is_batch_invariant()


@dataclass(frozen=True)
class Threshold:
    """From which sizes on a layer gains by FP8, forward and backward with all casts.

    A product takes time as tokens · in · out, its casts as tokens · in + tokens · out + in · out.
    The quotient, 1 / (1 / tokens + 1 / in + 1 / out), has to be at least `size`; and the products
    have to be long enough to hide the launches of the casts: tokens · in · out at least
    `multiplications`.
    """

    size: float
    multiplications: float


MEASURED: Final[dict[str, dict[str, Threshold]]] = {
    "NVIDIA H200": {
        "blockwise": Threshold(size=700, multiplications=1e10),
        "rowwise": Threshold(size=900, multiplications=1e10),
        "tensorwise": Threshold(size=770, multiplications=1e10),
    },
}
"""By the GPU's name and the recipe's. What is not in here is not known to be slower. The times are
in docs/notes/layers.md: in a CUDA graph blockwise is at 0.85 of BF16's rate for 8192 tokens of 1024
to 1024 features (size 481), at 1.06 for 4096 of 2048 to 2048 (819)."""


def fp8_wins(
    tokens: int, in_features: int, out_features: int, recipe: Recipe, device: torch.device
) -> bool:
    """True if a linear layer of these sizes is to use FP8, on a GPU that has such products: unless
    it was measured to be slower there. Always on the CPU, which is the reference and not meant to
    be quick. And wherever the number of tokens may not decide (batch_invariant)."""
    if device.type != "cuda" or not MEASURED or tokens == 0 or is_invariant(recipe):
        return True
    threshold = MEASURED.get(_gpu_name(device.index), {}).get(recipe.name)
    if threshold is None:
        return True
    multiplications = tokens * in_features * out_features
    casts = tokens * in_features + tokens * out_features + in_features * out_features
    return (
        multiplications >= threshold.multiplications and multiplications >= threshold.size * casts
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gpu_name(index: int) -> str:
    return _gpu_name_once(index)


@functools.cache
def _gpu_name_once(index: int) -> str:
    return torch.cuda.get_device_name(index)
