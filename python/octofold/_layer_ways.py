"""The way in which layers compute, by what a GPU has kernels for: one rule, which layers follow,
and which info() and the matrix of capabilities() tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NATIVE: Final = "native"
"""Activations are cast too, and FP8 multiplied with FP8."""
WEIGHT_ONLY: Final = "weight-only"
"""FP8 weights meet activations of 16 bits."""
CAST: Final = "cast"
"""FP8 in memory; each product takes a copy of the weight in 16 bits."""
LEFT: Final = "left"
"""The layer stays as it is: its weights are in high precision, and so are its products."""

LINEAR: Final = "linear layers"
EXPERTS: Final = "experts"
TRAINED: Final = "trained weights"
FP8: Final = "FP8 weights"


@dataclass(frozen=True)
class LayerWay:
    """How layers of a kind compute somewhere."""

    how: str
    """"native", "weight-only", "cast" or "left"."""
    why_not: str
    """Why not natively; "" where it is so."""

    def __str__(self) -> str:
        return f"{self.how}: {self.why_not}" if self.why_not else self.how


@dataclass(frozen=True)
class _Kind:
    native: tuple[str, ...]
    """The operations that native products of such a layer take, as info() names them."""
    weight_only: tuple[str, ...]
    """The operations that products of FP8 weights with 16-bit activations take."""


_KINDS: Final = {
    LINEAR: _Kind(("casts", "products"), ("products with FP8 weights",)),
    EXPERTS: _Kind(
        ("casts", "routing", "grouped products"),
        ("routing", "products with FP8 weights"),
    ),
}
LAYERS: Final = tuple((kind, weights) for kind in _KINDS for weights in (TRAINED, FP8))
"""A kind of layers, and of weights."""


def layer_way(kind: str, weights: str, why_not: Callable[[str], str]) -> LayerWay:
    """kind, weights: as in LAYERS. why_not: why there are no kernels of an operation, "" where
    there are."""
    operations = _KINDS[kind]
    reason = next(filter(None, map(why_not, operations.native)), "")
    if not reason:
        return LayerWay(NATIVE, "")
    if weights == TRAINED:
        return LayerWay(LEFT, reason)
    return LayerWay(CAST if any(map(why_not, operations.weight_only)) else WEIGHT_ONLY, reason)


def layer_ways(why_not: Callable[[str], str]) -> dict[str, LayerWay]:
    """All of LAYERS, by their names for people."""
    return {f"{kind} with {weights}": layer_way(kind, weights, why_not) for kind, weights in LAYERS}
