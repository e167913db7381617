"""What one GPU does in a second: measured rates, and the one that is nearest to what is asked."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from ..report import ToolError, read_text

COMMITTED: Final = Path(__file__).parent / "rates.json"
SCHEMA: Final = 1

Kind = Literal["rows", "weight"]
KINDS: Final[tuple[Kind, ...]] = ("rows", "weight")


@dataclass(frozen=True)
class Product:
    """`groups` products D [m, n] = A [m, k] · B [n, k]ᵀ, of one launch.

    kind "rows": m counts tokens (the output and the input gradient; FP8 scales 1x128 · 128x128);
    "weight": k counts tokens (the weight gradient; 1x128 · channel).
    """

    kind: Kind
    groups: int
    m: float
    n: float
    k: float

    @property
    def flops(self) -> float:
        return 2.0 * self.groups * self.m * self.n * self.k


@dataclass(frozen=True)
class Measured:
    """The seconds of one product, operands in FP8 (cast already) and in BF16."""

    kind: Kind
    groups: int
    m: int
    n: int
    k: int
    fp8_seconds: float
    bf16_seconds: float

    @property
    def product(self) -> Product:
        return Product(self.kind, self.groups, self.m, self.n, self.k)

    def seconds(self, fp8: bool) -> float:
        return self.fp8_seconds if fp8 else self.bf16_seconds


@dataclass(frozen=True)
class Rates:
    """One GPU's. All times that a plan has of a single GPU come from here."""

    machine: str
    date: str
    command: str
    commit: str
    notes: str
    products: tuple[Measured, ...]
    attention_forward: float
    """Floating-point operations a second of causal attention in BF16, masked ones not counted."""
    attention_backward: float
    copy: float
    """Bytes a second, read and written, of a device copy; likewise of the casts."""
    cast_rows: float
    """Rows, 1x128."""
    cast_inputs: float
    """Both ways from x: rows 1x128, the transpose by channels."""
    cast_gradients: float
    """Both ways from dY: 1x128."""
    peak_fp8: float
    """Operations a second that the maker names, without sparsity."""
    peak_bf16: float

    @cached_property
    def _cache(self) -> dict[tuple[Product, bool], float]:
        return {}

    def flops_per_second(self, product: Product, fp8: bool) -> float:
        """The rate of the measured product of this kind whose sizes are nearest, by ratios."""
        found = self._cache.get((product, fp8))
        if found is None:
            alike = (measured for measured in self.products if measured.kind == product.kind)
            nearest = min(alike, key=lambda measured: distance(measured.product, product))
            found = nearest.product.flops / nearest.seconds(fp8)
            self._cache[product, fp8] = found
        return found

    def seconds(self, product: Product, fp8: bool) -> float:
        return product.flops / self.flops_per_second(product, fp8)

    def document(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def text(self) -> str:
        """JSON with a product a line, as rates.json."""
        head = self.document()
        products = ",\n".join(f"    {json.dumps(entry)}" for entry in head.pop("products"))
        return f'{json.dumps(head, indent=2)[:-2]},\n  "products": [\n{products}\n  ]\n}}\n'


def distance(one: Product, other: Product) -> float:
    """Of sizes, as ratios."""
    pairs = ((one.groups, other.groups), (one.m, other.m), (one.n, other.n), (one.k, other.k))
    return sum(math.log(a / b) ** 2 for a, b in pairs)


def load_rates(path: Path) -> Rates:
    """Of a JSON file as `--rates measure --json` and rates.json have it. Raises ToolError."""
    try:
        document = json.loads(read_text(path))
    except OSError as error:
        raise ToolError(f"--rates: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ToolError(f"--rates: {path}: expected JSON: {error}") from None
    if isinstance(document, dict) and isinstance(document.get("rates"), dict):
        document = document["rates"]  # of a plan
    return rates_of(document, path)


def rates_of(document: object, path: Path) -> Rates:
    def fault(expected: str, got: object) -> ToolError:
        return ToolError(f"--rates: {path}: expected {expected}, got {got!r}")

    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        schema = document.get("schema") if isinstance(document, Mapping) else document
        raise fault(f"an object of schema {SCHEMA}", schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Rates):
        value = document.get(field.name)
        if field.name == "products":
            if not isinstance(value, list):
                raise fault("a list of products", value)
            values["products"] = tuple(measured_of(entry, fault) for entry in value)
        elif field.type is str:
            if not isinstance(value, str):
                raise fault(f"{field.name} as text", value)
            values[field.name] = value
        else:
            values[field.name] = positive(value, field.name, fault)
    for kind in KINDS:
        if not any(measured.kind == kind for measured in values["products"]):
            raise fault(f"a product of kind '{kind}'", None)
    return Rates(**values)


def measured_of(entry: object, fault: Any) -> Measured:
    if not isinstance(entry, Mapping) or entry.get("kind") not in KINDS:
        raise fault(f"a product whose kind is one of {', '.join(KINDS)}", entry)
    sizes = (int(positive(entry.get(name), name, fault)) for name in ("groups", "m", "n", "k"))
    times = (positive(entry.get(name), name, fault) for name in ("fp8_seconds", "bf16_seconds"))
    return Measured(entry["kind"], *sizes, *times)


def positive(value: object, name: str, fault: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise fault(f"{name} as a number above 0", value)
    return float(value)
