"""Which operation runs how on which GPU, with which scales."""

from dataclasses import dataclass, field
from typing import Any, Final

from ._info import info
from ._library import library
from ._probes import PROBES, Probe, why_no_probe

ARCHITECTURES: Final = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")

NATIVE, KERNELS, WEIGHT_ONLY, CAST, CPU = "native", "kernels", "weight-only", "cast", "CPU"
MEANINGS: Final = {
    NATIVE: "FP8 units multiply",
    KERNELS: "kernels that need no FP8 units",
    WEIGHT_ONLY: "not this, but FP8 weights with 16-bit activations (gemm_weight_only)",
    CAST: "not this, but FP8 in memory, dequantized before another library's product",
    CPU: "on the reference backend alone, as everything is",
}

_PRODUCTS: Final = ("products", "grouped products", "gated products", "products that cast A")


@dataclass(frozen=True)
class Support:
    """How an operation runs on an architecture."""

    how: str
    """A key of Capabilities.meanings: "native", "kernels", "weight-only", "cast" or "CPU"."""
    why_not: str
    """Why not natively, or by kernels; "" where it is so."""

    def __str__(self) -> str:
        return self.how


@dataclass(frozen=True)
class Tried:
    """What came of a launch on a GPU that is here."""

    worked: bool
    detail: str
    """Of what worked "", else the error, or how far the result is from the CPU backend's."""

    def __str__(self) -> str:
        return "worked" if self.worked else f"FAILED: {self.detail}"


@dataclass(frozen=True)
class Capability:
    """An operation with scales of certain granularities: a row of the matrix."""

    operation: str
    granularities: str
    """Of its operands: "1x128 × 128x128"; "" where it has none."""
    architectures: dict[str, Support]
    """By compute capability. All of it runs on the CPU too."""
    tried: dict[int, Tried] = field(default_factory=dict)
    """By the index of each GPU that was tried."""


@dataclass(frozen=True, repr=False)
class Capabilities:
    """The matrix."""

    rows: tuple[Capability, ...]
    gpus: dict[int, str]
    """Name and compute capability of the GPUs here, by index."""
    untried: str
    """Why nothing was tried on them; "" where it was."""

    meanings: dict[str, str] = field(default_factory=lambda: dict(MEANINGS))
    """Of the words in the cells."""

    def __repr__(self) -> str:
        head = ["operation", "scales", *ARCHITECTURES, *(f"GPU {index}" for index in self.gpus)]
        lines = [head, *(self.cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def cells(self, row: Capability) -> list[str]:
        """A row as texts: its name, its scales, a cell for each architecture, one for each GPU."""
        tried = (str(row.tried.get(index, "not tried")) for index in self.gpus)
        support = map(str, row.architectures.values())
        return [row.operation, row.granularities or "—", *support, *tried]


def capabilities(probe: bool = True) -> Capabilities:
    """How each operation runs on each architecture with each granularity of scales, and why not
    better: by the table that planners refuse by, whether such a GPU is here or not.

    probe: on the GPUs that are here launch the smallest problem of each row, too, and compare it
        with the CPU backend. That takes torch and NVRTC, and some seconds where kernels are
        compiled for the first time. `untried` says why it was not done.
    """
    rows = tuple(_row(one) for one in PROBES)
    gpus = {gpu.index: gpu for gpu in info().gpus}
    names = {
        index: f"{gpu.name} ({gpu.compute_major}.{gpu.compute_minor})"
        for index, gpu in gpus.items()
    }
    untried = "not asked for" if not probe else why_no_probe(list(gpus.values()))
    if not untried:
        for one, row in zip(PROBES, rows, strict=True):
            for index, gpu in gpus.items():
                if gpu.operations[row.operation].available:
                    row.tried[index] = Tried(*one.try_on(index))
    return Capabilities(rows, names, untried)


def _row(probe: Probe) -> Capability:
    support = {
        architecture: _support(probe, library.operations_on(*map(int, architecture.split("."))))
        for architecture in ARCHITECTURES
    }
    return Capability(probe.operation, probe.granularities, support)


def _support(probe: Probe, operations: Any) -> Support:
    def has(operation: str) -> bool:
        return bool(operations[operation]["available"])

    is_product = probe.operation in _PRODUCTS
    if has(probe.operation):
        return Support(NATIVE if is_product else KERNELS, "")
    why_not = str(operations[probe.operation]["detail"])
    if probe.operation == "products" and has("products with FP8 weights"):
        return Support(WEIGHT_ONLY, why_not)
    return Support(CAST if is_product and has("casts") else CPU, why_not)
