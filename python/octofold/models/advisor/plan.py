"""A plan: which layer of a model is run how, and what was measured to pick that; its file, and a
model made so."""

import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Self

import torch
from torch.nn import Module

from ..._core.errors import (
    BadFormatError,
    InvalidArgumentError,
    UnsupportedError,
    invalid_argument,
    io_error,
    require_type,
)
from ..._core.files import path_argument, read_text, write_whole
from ..._core.records import record, wrong_field
from ...nn.conversion.linear import replaced
from .model import WIDE, device_of, dtype_name, fingerprint, linears_of, machine_of
from .ways import OWN, WAYS

FORMAT: Final = 2
"""The number of the file's format. A file with another number is refused."""
TARGETS: Final = ("time", "bytes", "error")
_APPLY: Final = "octofold.models.apply"


@dataclass(frozen=True)
class Calls:
    """Calls of a layer in one run of the inputs that are alike."""

    rows: int
    dtype: str
    """The dtype that the layer computes in."""
    count: int

    def __post_init__(self) -> None:
        _require(self, "dtype", f"one of {', '.join(WIDE)}", self.dtype in WIDE)


@dataclass(frozen=True)
class Option:
    """A layer run one way, as measured."""

    way: str
    """A name in octofold.models.advisor.ways.WAYS; "own": as it is."""
    error: float | None = None
    """‖output − exact‖ / ‖exact‖ on rows of the layer's real input; exact: FP32 throughout."""
    effect: float | None = None
    """‖difference‖ / ‖answer‖ that this layer alone makes in what the model answers, less what
    rounding anew all that follows makes: measured for one way, in proportion to `error` for the
    others."""
    seconds: float | None = None
    """The time of all its calls in one run of the inputs, casts included; None: not measured."""
    bytes: int | None = None
    """The size of weight, scales and bias."""
    why_not: str | None = None
    """Why the layer cannot be run so; the other fields are None then."""

    def amount(self, timed: bool) -> float:
        """Its seconds, or bytes where plans have no times; 0 where it cannot be run."""
        return (self.seconds if timed else self.bytes) or 0.0


@dataclass(frozen=True)
class Layer:
    """A torch.nn.Linear."""

    name: str
    """Qualified, as in model.named_modules()."""
    in_features: int
    out_features: int
    dtype: str
    """The dtype of its weight."""
    calls: tuple[Calls, ...]
    options: tuple[Option, ...]
    """The first is "own", and the only one where the layer is left alone unmeasured."""
    chosen: str
    """The way that is to be; "own": it stays as it is."""
    why_own: str | None
    """Why it stays, where it does."""

    def __post_init__(self) -> None:
        ways = OWN, *WAYS
        _require(self, "chosen", f"a way that there is ({', '.join(ways)})", self.chosen in ways)
        usable = [option.way for option in self.options if option.why_not is None]
        _require(self, "chosen", "a way that was measured there", self.chosen in usable)
        for field in ("in_features", "out_features"):
            _require(self, field, "at least 0", getattr(self, field) >= 0)

    def option(self, way: str) -> Option | None:
        """The option of a way, as it was measured."""
        return next((option for option in self.options if option.way == way), None)

    @property
    def own(self) -> Option:
        """The option of the layer as it is."""
        return self.options[0]

    @property
    def planned(self) -> Option:
        """The option that was chosen."""
        return next(option for option in self.options if option.way == self.chosen)


@dataclass(frozen=True)
class Other:
    """Modules that no way is for."""

    kind: str
    """Name of their class."""
    count: int
    why: str


@dataclass(frozen=True)
class Whole:
    """The whole model on the inputs, as it is and by the plan."""

    bytes_own: int
    """The size of all parameters and buffers."""
    bytes_planned: int
    error_own: float
    """‖difference‖ / ‖answer‖ that rounding makes: between the model as it is and the model with
    the results of its linear layers rounded at random, of the tensor of an answer where it is
    largest."""
    error_predicted: float
    """The same between the plan and the model as it is: the root of the sum of the squares of the
    layers' effects and of error_own, as whatever changes a layer rounds all after it anew."""
    error: float
    """The same, measured by a run of the whole."""
    seconds_own: float | None = None
    seconds_predicted: float | None = None
    """seconds_own less what the layers gain."""
    seconds_planned: float | None = None
    """Measured."""
    seconds_own_from_python: float | None = None
    """Called from Python, where the others are CUDA graphs."""
    seconds_planned_from_python: float | None = None


@dataclass(frozen=True)
class Plan:
    """The result of advise() for a model, its inputs and a GPU; apply() makes a model so."""

    format: int
    octofold: str
    """Versions."""
    torch: str
    machine: str
    """The device: the GPU's name and its compute capability, "NVIDIA H200 (9.0)", or "cpu"."""
    model: str
    """Its class."""
    fingerprint: str
    """A hash of the model's names, shapes and dtypes."""
    target: str
    """The quantity that is minimized: "time", "bytes" or "error"."""
    max_error: float | None
    max_bytes: int | None
    timing: str | None
    """"CUDA graph" or "calls from Python"; None: no times were measured."""
    runs: int
    """Runs of the model that the inputs stand for; times are of all of them."""
    layers: tuple[Layer, ...]
    others: tuple[Other, ...]
    whole: Whole
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(self, "format", str(FORMAT), self.format == FORMAT)
        _require(self, "target", f"one of {', '.join(TARGETS)}", self.target in TARGETS)
        names = {layer.name for layer in self.layers}
        _require(self, "layers", "no name twice", len(names) == len(self.layers))

    @property
    def changed(self) -> tuple[Layer, ...]:
        """The layers that apply() changes."""
        return tuple(layer for layer in self.layers if layer.chosen != OWN)

    @property
    def timed(self) -> bool:
        """True if times were measured; reports are of bytes otherwise."""
        return self.timing is not None

    def to_json(self) -> str:
        """The plan as JSON, which from_json() reads."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises BadFormatError that names the field for what is no plan."""
        return cls._read("plan", text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a JSON file, whole or not at all. Replaces the file. Raises IoError."""
        file = path_argument("Plan.save", "path", path)
        try:
            write_whole(file, self.to_json())
        except OSError as error:
            raise io_error(error, f"cannot write '{file}'") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what save() wrote. Raises IoError, and BadFormatError that names file and field."""
        file = path_argument("Plan.load", "path", path)
        try:
            return cls._read(str(file), read_text(file))
        except UnicodeDecodeError:
            raise BadFormatError(f"{file}: expected a plan in JSON, got no UTF-8") from None
        except OSError as error:
            raise io_error(error, f"cannot open '{file}'") from None

    @classmethod
    def _read(cls, name: str, text: str) -> Self:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFormatError(f"{name}: expected a plan in JSON: {error}") from None
        if not isinstance(content, dict):
            raise BadFormatError(f"{name}: expected a plan in JSON, got {type(content).__name__}")
        if (number := content.get("format")) != FORMAT:  # its other fields mean something else
            raise wrong_field(name, "format", str(FORMAT), number)
        return record(cls, content, name)

    def __repr__(self) -> str:
        return f"Plan({self.model}: {len(self.changed)} of {len(self.layers)} linear layers)"


def _require(value: object, field: str, expected: str, holds: bool) -> None:
    if not holds:
        raise invalid_argument(type(value).__name__, field, expected, repr(getattr(value, field)))


@torch.no_grad()
def apply(model: Module, plan: Plan, *, strict: bool = True) -> Module:
    """Make the layers of a model what a plan says, in place, all or none.

    model: on the GPU (or the CPU) on which the plan was measured, with the names, shapes and dtypes
        that it had then; its values may differ. A torch.nn.Linear itself is left as it is, and the
        new layer is returned.
    strict: False: another GPU, or other layers beside those that the plan changes, are a warning.
        Layers that are missing, have other shapes, or cannot be run so here remain errors.

    The layers are for inference: they have no gradient by the weight, and those of FP8 products
    have none at all. There is no way back, because what the cast rounds away is gone: keep the
    checkpoint. While this runs, memory holds the old and the new weights.
    Returns the model.
    Raises InvalidArgumentError, which says what does not fit, and UnsupportedError where this GPU
    cannot run a layer so; the model is then as it was.
    """
    require_type(_APPLY, "model", model, Module, "a torch.nn.Module")
    require_type(_APPLY, "plan", plan, Plan, "a Plan of advise()")
    device = device_of(_APPLY, model)
    for expected, got in _misfits(model, plan, machine_of(device)):
        error = invalid_argument(_APPLY, "plan", expected, got)
        if strict:
            raise InvalidArgumentError(f"{error} (strict=False: a warning)")
        warnings.warn(str(error), stacklevel=3)
    linears, alone = linears_of(model)
    new: dict[int, Module] = {}
    for layer in plan.changed:
        linear = linears.get(layer.name)
        wrong = _difference(layer, linear, with_dtype=False)
        if layer.name in alone:
            wrong = f"{layer.name!r} has to stay: {alone[layer.name]}"
        if linear is None or wrong:
            expected = "one for a model with the layers that it changes"
            raise invalid_argument(_APPLY, "plan", expected, f"one for a {plan.model}: {wrong}")
        way = WAYS[layer.chosen]
        why_not = way.why_not(device, {WIDE[calls.dtype] for calls in layer.calls})
        if why_not is not None:
            raise UnsupportedError(f"{_APPLY}: argument 'plan': layer {layer.name!r}: {why_not}")
        new[id(linear)] = way.make(linear)
    return replaced(model, new)


def _misfits(model: Module, plan: Plan, machine: str) -> Iterator[tuple[str, str]]:
    """In what the model or its device is another than the plan's: (expected, got)."""
    if machine != plan.machine:
        expected = f"one that was measured on the model's device, {machine}"
        yield expected, f"one of {plan.machine}"
    if fingerprint(model) != plan.fingerprint:
        modules = dict(model.named_modules())
        found = [_difference(layer, modules.get(layer.name)) for layer in plan.layers]
        same = "the linear layers are the same, other parameters or buffers are not"
        expected = "one for a model with the names, shapes and dtypes of this one"
        yield expected, f"one for a {plan.model}: {next(filter(None, found), same)}"


def _difference(layer: Layer, module: Module | None, with_dtype: bool = True) -> str:
    """In what a layer of the model is another than the plan's."""
    if module is None:
        return f"there is no {layer.name!r}"
    if not isinstance(module, torch.nn.Linear):
        return f"{layer.name!r} is no torch.nn.Linear but {type(module).__qualname__}"
    theirs, ours = shape_of(layer), shape_of(module)
    if with_dtype:
        theirs += f" in {layer.dtype}"
        ours += f" in {dtype_name(getattr(module.weight, 'codes', module.weight).dtype)}"
    return "" if theirs == ours else f"{layer.name!r} is of {ours}, not {theirs}"


def shape_of(layer: Layer | torch.nn.Linear) -> str:
    """ "768 → 3072"."""
    return f"{layer.in_features} → {layer.out_features}"
