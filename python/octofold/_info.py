"""The capabilities of this machine, and the reasons why it has no more. The way in which layers
compute follows from what a GPU has kernels for, by one rule, which layers follow too."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ._core.library import library
from ._core.records import record

NATIVE: Final = "native"
"""Activations are cast too, and FP8 multiplied with FP8."""
WEIGHT_ONLY: Final = "weight-only"
"""FP8 weights meet activations of 16 bits."""
CAST: Final = "cast"
"""FP8 in memory; each product takes a copy of the weight in 16 bits."""
HIGH_PRECISION: Final = "left"
"""The layer stays as it is: its weights are in high precision, and so are its products."""

LINEAR: Final = "linear layers"
EXPERTS: Final = "experts"
TRAINED: Final = "trained weights"


FP8: Final = "FP8 weights"


@dataclass(frozen=True)
class Support:
    """How an operation, or a kind of layers, runs somewhere."""

    how: str
    """A key of Capabilities.meanings: "native", "kernels", "weight-only", "cast", "CPU", "none"; of
    layers "left" too."""
    why_not: str
    """Why not natively, or by kernels, as the error of a call says it; "" where it is so."""

    def __str__(self) -> str:
        return self.how


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


def layer_way(kind: str, weights: str, why_not: Callable[[str], str]) -> Support:
    """kind, weights: as in LAYERS. why_not: why there are no kernels of an operation, "" where
    there are."""
    operations = _KINDS[kind]
    reason = next(filter(None, map(why_not, operations.native)), "")
    if not reason:
        return Support(NATIVE, "")
    if weights == TRAINED:
        return Support(HIGH_PRECISION, reason)
    return Support(CAST if any(map(why_not, operations.weight_only)) else WEIGHT_ONLY, reason)


def layer_ways(why_not: Callable[[str], str]) -> dict[str, Support]:
    """All of LAYERS, by their names for people."""
    return {f"{kind} with {weights}": layer_way(kind, weights, why_not) for kind, weights in LAYERS}


@dataclass(frozen=True)
class Component:
    """A part that may be missing. `detail` is its version, or the reason why it is missing."""

    available: bool
    detail: str

    @property
    def why_not(self) -> str:
        """ "" of a part that is there."""
        return "" if self.available else self.detail

    def __str__(self) -> str:
        return self.detail if self.available else f"not available: {self.detail}"


@dataclass(frozen=True)
class Gpu:
    """A CUDA device."""

    index: int
    name: str
    compute_major: int
    compute_minor: int
    multiprocessors: int
    memory_bytes: int
    backend: Component
    """The backend that Octofold has for this GPU, or the reason why it has none."""
    operations: dict[str, Component] = field(default_factory=dict)
    """The kinds of operations that the backend has kernels for: "casts", "norms", "rotary
    embeddings", "routing", "dot products", "products with FP8 weights", "attention", "products",
    "grouped products", "gated products", "products that cast A"; or the reason why not."""

    @property
    def layers(self) -> dict[str, Support]:
        """How octofold.nn's layers compute on it: "linear layers" and "experts", each "with trained
        weights" and "with FP8 weights"."""
        known = self.operations
        return layer_ways(lambda name: known[name].why_not) if known else {}

    def __str__(self) -> str:
        return (
            f"{self.name}, compute capability {self.compute_major}.{self.compute_minor}, "
            f"{self.multiprocessors} multiprocessors, {self.memory_bytes / 2**30:.1f} GiB; "
            f"backend: {self.backend}"
            + "".join(
                f"; {name} {support}"
                for name, support in self.operations.items()
                if self.backend.available and not support.available
            )
            + "".join(
                f"; {name}: {way.how}"
                for name, way in self.layers.items()
                if self.backend.available
            )
        )


@dataclass(frozen=True, repr=False)
class Info:
    """The version, and what works here."""

    version: str
    cpu_threads: int
    """Threads that one CPU operation may use."""
    cpu: Component
    """The reference backend and the BLAS inside it."""
    driver: Component
    """libcuda."""
    nvrtc: Component
    """The run-time compiler."""
    gpus: tuple[Gpu, ...]

    def __repr__(self) -> str:
        lines = {
            f"Octofold {self.version}": "",
            "  cpu": f"{self.cpu}, {self.cpu_threads} threads",
            "  driver": str(self.driver),
            "  nvrtc": str(self.nvrtc),
            **{f"  gpu {gpu.index}": str(gpu) for gpu in self.gpus},
        }
        return "\n".join(f"{name:<10}{text}".rstrip() for name, text in lines.items())


def info() -> Info:
    """Probe this machine, anew at each call. A part that is missing is reported, not raised."""
    return record(Info, library.info())
