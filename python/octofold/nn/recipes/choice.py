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

FEW_TOKENS: Final = 16
"""Up to so many the weight's bytes are what takes time, and x need not be rounded: weight-only
products took 0.5 to 0.83 of torch's time at 1 and 16 rows on an H200 (docs/notes/weight-only.md),
and need no cast of x."""

FEW_TOKENS_OF_EXPERTS: Final = 0
"""The same of experts with FP8 weights, in the tokens of a call. Not measured: none are few."""

MOST_TOKENS: Final = 128
"""Up to so many weight-only products are taken where there are no native ones. Above, a copy of the
weight and torch's product are estimated to be quicker: reading and writing 3 bytes for each weight
takes as long as 130 to 220 rows lose in a kernel that reaches 0.45 of the tensor cores' rate, by
the rates of an H200, an A100 and an RTX 3050. Not measured on the latter two."""

MOST_TOKENS_OF_WARPGROUPS: Final = 1024
MOST_TOKENS_OF_GRADIENT: Final = 512
"""The same on Hopper, of a product and of its gradient by x, by scales of blocks at 4096,7168: 92
µs at 1024 rows where torch's product takes 76, and a copy of the weight some 20; of 512 rows of a
gradient it is estimated (docs/notes/weight-only.md)."""


def require_compute(operation: str, compute: object) -> None:
    """One of COMPUTE."""
    if compute not in COMPUTE:
        expected = f"one of {', '.join(COMPUTE)}"
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
