"""A plan: which layer of a model is run how, and what was measured to pick that."""

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Self

from ..._core.files import path_argument
from .files import Machine, plan_fields, read_plan, write_plan
from .record import Other
from .ways import OWN


@dataclass(frozen=True)
class Calls:
    """Calls of a layer in one run of the inputs that are alike."""

    rows: int
    dtype: str
    """The dtype that the layer computes in."""
    count: int


@dataclass(frozen=True)
class Option:
    """A layer run one way, as measured."""

    way: str
    """A name in octofold.models.advisor.ways.WAYS; "own": as it is."""
    error: float | None
    """‖output − exact‖ / ‖exact‖ on rows of the layer's real input; exact: FP32 throughout."""
    effect: float | None
    """‖difference‖ / ‖answer‖ that this layer alone makes in what the model answers, less what
    rounding anew all that follows makes: measured for one way, in proportion to `error` for the
    others."""
    seconds: float | None
    """The time of all its calls in one run of the inputs, casts included; None: not measured."""
    bytes: int | None
    """The size of weight, scales and bias."""
    why_not: str | None
    """Why the layer cannot be run so; the other fields are None then."""

    def with_effect(self, effect: float | None) -> "Option":
        """The same with this effect; the layer as it is has none."""
        return self if self.way == OWN else replace(self, effect=effect)


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
    """The first is "own"; none where the layer is left alone unmeasured."""
    chosen: str
    """The way that is to be; "own": it stays as it is."""
    why_own: str | None
    """Why it stays, where it does."""

    def option(self, way: str) -> Option | None:
        """The option of a way, as it was measured."""
        return next((option for option in self.options if option.way == way), None)

    @property
    def own(self) -> Option | None:
        """The option of the layer as it is."""
        return self.option(OWN)

    @property
    def planned(self) -> Option | None:
        """The option that was chosen."""
        return self.option(self.chosen)


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
    seconds_own: float | None
    seconds_predicted: float | None
    """seconds_own less what the layers gain."""
    seconds_planned: float | None
    """Measured."""
    seconds_own_from_python: float | None
    """Called from Python, where the others are CUDA graphs."""
    seconds_planned_from_python: float | None


@dataclass(frozen=True)
class Plan:
    """The result of advise() for a model, its inputs and a GPU; apply() makes a model so."""

    format: int
    octofold: str
    """Versions."""
    torch: str
    machine: Machine
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

    @property
    def changed(self) -> tuple[Layer, ...]:
        """The layers that apply() changes."""
        return tuple(layer for layer in self.layers if layer.chosen != OWN)

    def to_json(self) -> str:
        """The plan as JSON, which from_json() reads."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises BadFormatError that names the field for what is no plan."""

        return cls(**plan_fields(text, cls, "plan"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a JSON file, whole or not at all. Replaces the file. Raises IoError."""

        write_plan(path_argument("Plan.save", "path", path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what save() wrote. Raises IoError, and BadFormatError that names file and field."""

        file = path_argument("Plan.load", "path", path)
        return cls(**plan_fields(read_plan(file), cls, str(file)))

    def __repr__(self) -> str:
        return f"Plan({self.model}: {len(self.changed)} of {len(self.layers)} linear layers)"
