"""How each operation runs on each GPU, with operands of each form."""

from dataclasses import dataclass, field
from typing import Any, Final

from ._core.formats import GRANULARITIES
from ._core.library import library
from ._core.records import record
from ._info import HIGH_PRECISION, Support, layer_ways

NATIVE, KERNELS = "native", "kernels"
MEANINGS: Final = {
    NATIVE: "FP8 units multiply",
    KERNELS: "kernels that need no FP8 units",
    "weight-only": "not this, but FP8 weights with 16-bit activations (gemm_weight_only)",
    "cast": "not this, but FP8 in memory, dequantized before another library's product",
    "CPU": "on the reference backend alone",
    "none": "an error everywhere: operands of these forms do not go together",
    HIGH_PRECISION: "layers alone: it stays as it is, and computes in 16 bits",
}


@dataclass(frozen=True)
class Target:
    """A device that an operation may run on."""

    name: str
    """A compute capability, "9.0", or "cpu"."""
    examples: str
    """GPUs that have it: "H100, H200"; "" where none is known."""
    gpus: tuple[int, ...]
    """The indices of those here."""


@dataclass(frozen=True)
class Capability:
    """An operation with operands of certain forms: a row of the matrix."""

    operation: str
    """The public function: "gemm". "cast_normed" and its like are ops.cast() of such a source."""
    kind: str
    """The name of its kind in info(): "products" and the like."""
    operands: dict[str, str]
    """The form of each, by its name in the call: "numbers" (of any wide dtype), "float32",
    "float16", "bfloat16", "fp8" (codes without scales), or codes with scales: a granularity,
    "head", "128 keys"."""
    most_rows: dict[str, int]
    """By name, the rows that an operand may have at most, where there is a limit."""
    support: dict[str, Support]
    """By the name of the target."""

    def __str__(self) -> str:
        operands = zip(self.named_operands(), self.operands.values(), strict=True)
        return f"{self.operation}({', '.join(f'{name}: {form}' for name, form in operands)})"

    def named_operands(self) -> tuple[str, ...]:
        """The names of the operands, with their limits."""
        return tuple(
            f"{name} of up to {self.most_rows[name]} rows" if name in self.most_rows else name
            for name in self.operands
        )


@dataclass(frozen=True, repr=False)
class Capabilities:
    """The matrix. As text: what works alike in one line."""

    rows: tuple[Capability, ...]
    targets: tuple[Target, ...]
    at_hand: str
    """The GPUs that are here, or the reason why none is."""
    layers: dict[str, dict[str, Support]] = field(default_factory=dict)
    """How octofold.nn's layers compute: by the layer ("linear layers with FP8 weights"), by the
    name of the target."""
    meanings: dict[str, str] = field(default_factory=lambda: dict(MEANINGS))
    """The meanings of the words in the cells."""

    def __repr__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        )

    def table(self) -> list[list[str]]:
        """The matrix as text, the head first: an operation, the forms of its operands ("scaled":
        each of the four granularities), a cell for each target. Layers come last."""
        head = [target.name + "".join(f" cuda:{i}" for i in target.gpus) for target in self.targets]
        alike: dict[tuple[Any, ...], list[Capability]] = {}
        for row in self.rows:
            cells = (str(row.support[target.name]) for target in self.targets)
            alike.setdefault((row.named_operands(), row.operation, *cells), []).append(row)
        lines = [
            [operation, operands, *cells]
            for (_, operation, *cells), rows in alike.items()
            for operands in _summaries(rows)
        ]
        ways = [
            ["octofold.nn", layer, *(by_target[target.name].how for target in self.targets)]
            for layer, by_target in self.layers.items()
        ]
        return [["operation", "operands", *head], *lines, *ways]


def capabilities() -> Capabilities:
    """How each operation runs on each architecture with operands of each form, and why not better.
    The answers come from the tables by which operations and planners refuse, whether such a GPU is
    at hand or not. `octofold info` tries a product on those that are.
    """
    matrix = library.capabilities()
    targets = tuple(record(Target, target) for target in matrix["targets"])
    rows = tuple(row for fields in matrix["rows"] if (row := _row(fields, targets)) is not None)
    return Capabilities(rows, targets, str(matrix["at_hand"]), _layers(rows, targets))


def _layers(
    rows: tuple[Capability, ...], targets: tuple[Target, ...]
) -> dict[str, dict[str, Support]]:
    """By the layer, by the target."""
    found: dict[str, dict[str, Support]] = {}
    for target in targets:

        def why_not(kind: str, name: str = target.name) -> str:
            here = [row.support[name] for row in rows if row.kind == kind]
            reasons = [cell.why_not for cell in here if cell.how not in (NATIVE, KERNELS, "none")]
            has_kernels = any(cell.how in (NATIVE, KERNELS) for cell in here)
            return "" if has_kernels or name == "cpu" else reasons[0]

        for layer, way in layer_ways(why_not).items():
            here = Support("CPU", "") if target.name == "cpu" else way
            found.setdefault(layer, {})[target.name] = here
    return found


def _row(fields: Any, targets: tuple[Target, ...]) -> Capability | None:
    support = {
        target.name: record(Support, cell)
        for target, cell in zip(targets, fields["support"], strict=True)
    }
    operands = {str(operand["name"]): str(operand["form"]) for operand in fields["operands"]}
    most_rows = {
        str(operand["name"]): int(operand["most_rows"])
        for operand in fields["operands"]
        if operand["most_rows"]
    }
    name = str(fields["operation"])
    if name == "cast" and support["cpu"].how == "none":
        return None  # cast() reads twice for such a pair
    return Capability(name, str(fields["kind"]), operands, most_rows, support)


def _summaries(rows: list[Capability]) -> list[str]:
    """The operands of one operation's rows in as few lines as products of sets give."""
    boxes: list[tuple[tuple[str, ...], ...]] = [
        tuple((form,) for form in row.operands.values()) for row in rows
    ]
    names = rows[0].named_operands()
    for axis in reversed(range(len(names))):
        joined: dict[Any, tuple[str, ...]] = {}
        for box in boxes:
            others = box[:axis], box[axis + 1 :]
            joined[others] = joined.get(others, ()) + box[axis]
        boxes = [(*before, forms, *after) for (before, after), forms in joined.items()]
    return [
        " × ".join(f"{name} {_brief(forms)}" for name, forms in zip(names, box, strict=True)) or "—"
        for box in boxes
    ]


def _brief(forms: tuple[str, ...]) -> str:
    if set(GRANULARITIES) <= set(forms):
        forms = (*(form for form in forms if form not in GRANULARITIES), "scaled")
    return "/".join(forms)
