"""The linear layers of a model that can be run another way, and the calls of each in a run,
recorded by hooks."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ...nn.conversion.picking import objection
from ...nn.conversion.weight_readers import weight_readers
from .ways import Use

_ATTENTION: Final = (
    "attention computes in its own dtype: octofold.attention is for keys and values that a server "
    "keeps in FP8, and no plan puts it into a model"
)
_CONVOLUTION: Final = "no operation for convolutions"


@dataclass(frozen=True)
class Other:
    """Modules that no way is for."""

    kind: str
    """Name of their class."""
    count: int
    why: str


def linears_of(model: Module) -> tuple[dict[str, torch.nn.Linear], dict[str, str]]:
    """The torch.nn.Linear of a model by the first of their names; and of those that must stay as
    they are why, by theirs."""
    holders: dict[int, set[int]] = {}
    places: dict[int, str] = {}
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), set()).add(id(module))
                places.setdefault(id(parameter), f"{path}.{key}".lstrip("."))
    linears: dict[str, torch.nn.Linear] = {}
    alone: dict[str, str] = {}
    readers = weight_readers(model)
    for path, module in model.named_modules():
        if type(module) is not torch.nn.Linear:
            continue
        why = readers.get(id(module)) or _why_alone(module)
        if why is None and len(holders[id(module.weight)]) > 1:
            why = f"its weight is tied: {places[id(module.weight)]} is the same"
        if why is None:
            linears[path] = module
        else:
            alone[path] = why
    return linears, alone


def _why_alone(linear: torch.nn.Linear) -> str | None:
    hooks = (linear._forward_hooks, linear._forward_pre_hooks)
    if any(hooks):
        return "it has hooks, which another layer would lose"
    why = objection(linear)
    if why is not None:
        return why
    if linear.weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its weight is {str(linear.weight.dtype).removeprefix('torch.')}"
    if hasattr(linear.weight, "device_mesh"):
        return "its weight is sharded"
    if linear.weight.numel() == 0:
        return "its weight is empty"
    return None


def others_of(model: Module) -> tuple[Other, ...]:
    """The modules that compute products but are no torch.nn.Linear, by class."""
    counts: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        why = _why_other(module)
        if why is not None:
            counts[type(module).__name__, why] += 1
    return tuple(Other(kind, count, why) for (kind, why), count in sorted(counts.items()))


def _why_other(module: Module) -> str | None:
    name = type(module).__name__
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return _CONVOLUTION
    if isinstance(module, torch.nn.Linear):
        return (
            None
            if type(module) is torch.nn.Linear
            else "a class of its own made of torch.nn.Linear"
        )
    if name == "Conv1D":  # transformers' GPT-2
        return "a linear layer with its weight transposed: no torch.nn.Linear"
    if name.endswith("Experts"):
        return "experts: octofold.nn.convert_experts is for these"
    if isinstance(module, torch.nn.MultiheadAttention) or name.endswith("Attention"):
        return _ATTENTION
    return None


SAMPLE_BYTES: Final = 256 << 20
"""The most bytes of all samples together."""
SAMPLE_ROWS: Final = 512
MIN_SAMPLE_ROWS: Final = 32


@dataclass(frozen=True)
class Kind:
    """The properties in which calls of a layer may differ."""

    rows: int
    dtype: torch.dtype
    """The dtype of x."""
    autocast: torch.dtype | None
    """The dtype that autocast makes of it; None: it is off."""

    @property
    def computes(self) -> torch.dtype:
        """The dtype that the layer computes in."""
        return self.autocast or self.dtype

    def context(self, device: torch.device) -> AbstractContextManager[Any]:
        """Autocast as it was."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


@dataclass
class Recorded:
    """A linear layer, its calls, and rows of what it was given."""

    name: str
    linear: torch.nn.Linear
    calls: Counter[Kind] = field(default_factory=Counter)
    sample: Tensor | None = None
    """[rows, in]: of the first calls, spread evenly, and the row of the largest magnitude."""
    sample_kind: Kind | None = None
    """The kind of the first call, which the sample is of."""

    def use(self, device: torch.device) -> Use:
        """The use of the layer, as ways have to know it."""
        return Use(device, frozenset(kind.computes for kind in self.calls))

    def add(self, x: Tensor, limit: int) -> None:
        """Count a call, and sample it while rows are missing."""
        rows = x.numel() // x.shape[-1] if x.numel() else 0
        if rows == 0:
            return
        device = x.device.type
        on = torch.is_autocast_enabled(device)
        kind = Kind(rows, x.dtype, torch.get_autocast_dtype(device) if on else None)
        self.calls[kind] += 1
        first = self.sample_kind or kind
        if (kind.dtype, kind.autocast) != (first.dtype, first.autocast):
            return
        held = 0 if self.sample is None else len(self.sample)
        if held >= limit:
            return
        taken = sample_rows(x.detach().reshape(rows, x.shape[-1]), limit - held)
        self.sample = taken if self.sample is None else torch.cat([self.sample, taken])
        self.sample_kind = first


def sample_rows(x: Tensor, limit: int) -> Tensor:
    """At most `limit` rows of x [rows, in], a copy: spread evenly, and with them that of the
    largest magnitude, which decides what a scale for all of x loses."""
    rows = len(x)
    if rows <= limit:
        return x.clone()
    places = torch.linspace(0, rows - 1, limit, device=x.device).round().long()
    largest = x.abs().amax(1).float().argmax()
    if not bool((places == largest).any()):
        places[limit // 2] = largest
    return x[places]


@contextmanager
def recording(linears: dict[str, torch.nn.Linear]) -> Iterator[list[Recorded]]:
    """While the block runs, calls of these layers are recorded; in the order of the first calls
    at its end, those that were not called last."""
    records = [Recorded(name, linear) for name, linear in linears.items()]
    order: dict[str, None] = {}
    handles = [
        record.linear.register_forward_pre_hook(
            _hook(record, _limit(record.linear, len(records)), order), with_kwargs=True
        )
        for record in records
    ]
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
        places = {name: place for place, name in enumerate(order)}
        records.sort(key=lambda record: places.get(record.name, len(places)))


def _limit(linear: torch.nn.Linear, layers: int) -> int:
    row_bytes = linear.in_features * linear.weight.element_size()
    return max(MIN_SAMPLE_ROWS, min(SAMPLE_ROWS, SAMPLE_BYTES // (layers * row_bytes)))


def _hook(record: Recorded, limit: int, order: dict[str, None]) -> Any:
    def hook(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor) and x.dim() > 0 and x.shape[-1] == record.linear.in_features:
            record.add(x, limit)
            order[record.name] = None

    return hook


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" and so on."""
    return str(dtype).removeprefix("torch.")


WIDE: Final = {dtype_name(d): d for d in (torch.bfloat16, torch.float16, torch.float32)}
"""The dtypes that layers compute in, by these names."""
