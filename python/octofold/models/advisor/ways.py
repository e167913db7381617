"""Ways to run a linear layer: the table that the advisor measures. A new way is a row here."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import Module

from ..._core.errors import invalid_argument
from ...nn.casting.fp8_weight import Fp8Weight
from ...nn.layers.fp8_parameters import inference_linear, weight_only_linear, with_weight
from ...nn.recipes.kernels import has_bfloat16, has_kernels

OWN: Final = "own"
"""The name of a way that stands for the layer as it is."""


@dataclass(frozen=True)
class Way:
    """One way to run a linear layer."""

    name: str
    title: str
    """For people."""
    why_not: Callable[[torch.device, Collection[torch.dtype]], str | None]
    """Why a layer on this device, whose x is of these dtypes (autocast's where that is on), cannot
    be run this way; None where it can."""
    make: Callable[[torch.nn.Linear], Module]
    """A module in its place. The layer stays as it is; the bias is shared."""


def _no_kernels(device: torch.device, *operations: str) -> str | None:
    missing = [operation for operation in operations if not has_kernels(operation, device)]
    return f"this GPU has no kernels of {missing[0]} (octofold info says why)" if missing else None


def _no_weight_only(device: torch.device, dtypes: Collection[torch.dtype]) -> str | None:
    if torch.float32 in dtypes:
        return "its input is float32: takes float16 or bfloat16"
    if torch.bfloat16 in dtypes and not has_bfloat16(device):
        return "its input is bfloat16: GPUs before compute capability 8.0 take float16"
    return _no_kernels(device, "products with FP8 weights")


def _native(recipe: str, title: str) -> Way:
    return Way(
        recipe,
        title,
        lambda device, dtypes: _no_kernels(device, "products", "casts"),
        lambda linear: inference_linear(linear, recipe),
    )


def _weight_only(granularity: str) -> Way:
    return Way(
        f"weight-only-{granularity}",
        f"weight in FP8 {granularity}, x in 16 bits",
        _no_weight_only,
        lambda linear: weight_only_linear(linear, granularity),
    )


WAYS: Final[dict[str, Way]] = {
    way.name: way
    for way in (
        _native("blockwise", "FP8 product, x 1x128, weight 128x128"),
        _native("rowwise", "FP8 product, a scale for each row of x and of the weight"),
        _native("tensorwise", "FP8 product, one scale for x and one for the weight"),
        _weight_only("128x128"),
        _weight_only("channel"),
        _weight_only("1x128"),
        _weight_only("tensor"),
        Way(
            "cast",
            "weight kept in FP8 128x128, dequantized in each forward, product in x's dtype",
            lambda device, dtypes: _no_kernels(device, "casts"),
            lambda linear: with_weight(linear, Fp8Weight.cast(linear.weight, compute="copy")),
        ),
    )
}


def ways_of(operation: str, names: Sequence[str] | None) -> tuple[Way, ...]:
    """The ways of these names, in the order of the table; None: all."""
    if names is None:
        return tuple(WAYS.values())
    wrong = isinstance(names, str) or not names
    if wrong or any(not isinstance(name, str) or name not in WAYS for name in names):
        expected = f"a list of names among {', '.join(WAYS)}"
        raise invalid_argument(operation, "ways", expected, repr(names))
    return tuple(way for name, way in WAYS.items() if name in names)
