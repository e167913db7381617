"""A layer as it is measured: its calls and rows of what it is given, recorded by hooks; its error
in each way, and what that does to the model's answer."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error
from ...nn.autograd.functions import result_dtype
from .model import bytes_of, one_line, relative, squares
from .plan import Option
from .ways import OWN, WAYS, Way

SAMPLE_BYTES: Final = 256 << 20
"""The most bytes of all samples together."""
SAMPLE_ROWS: Final = 512
MIN_SAMPLE_ROWS: Final = 32

ErrorOf = Callable[[dict[int, Module]], float]
"""The error of the model's answer with modules in the place of others, by these's identities."""


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
class Candidate:
    """A linear layer, its calls, rows of what it was given, and what was measured of it so far."""

    name: str
    linear: torch.nn.Linear
    calls: Counter[Kind] = field(default_factory=Counter)
    sample: Tensor = field(default_factory=lambda: torch.empty(0))
    """[rows, in]: of the first calls, spread evenly, and the row of the largest magnitude."""
    options: list[Option] = field(default_factory=lambda: [Option(OWN)])
    why_alone: str = ""
    """Why it is not measured, where it is not."""

    @property
    def sample_kind(self) -> Kind:
        """The kind of the first call, which the sample is of."""
        return next(iter(self.calls))

    def add(self, x: Tensor, limit: int) -> None:
        """Count a call, and sample it while rows are missing."""
        rows = x.numel() // x.shape[-1] if x.numel() else 0
        if rows == 0:
            return
        device = x.device.type
        on = torch.is_autocast_enabled(device)
        kind = Kind(rows, x.dtype, torch.get_autocast_dtype(device) if on else None)
        self.calls[kind] += 1
        missing = limit - len(self.sample)
        if missing > 0 and replace(kind, rows=self.sample_kind.rows) == self.sample_kind:
            taken = sample_rows(x.detach().reshape(rows, x.shape[-1]), missing)
            self.sample = torch.cat([self.sample, taken]) if len(self.sample) else taken

    def measure(self, ways: Sequence[Way]) -> None:
        """The options: the layer as it is, and each way: errors on its sample, and bytes."""
        linear, x = self.linear, self.sample
        bias = None if linear.bias is None else linear.bias.float()
        exact = torch.nn.functional.linear(x.float(), linear.weight.float(), bias)

        def option_of(name: str, make: Callable[[torch.nn.Linear], Module]) -> Option:
            module = make(linear)
            with self.sample_kind.context(x.device):
                error = relative(*squares(module(x), exact))
            if name != OWN and not math.isfinite(error):
                return Option(name, why_not="its output is not finite")
            effect = 0.0 if name == OWN else None
            return Option(name, error, effect, bytes=bytes_of(module))

        self.options = [option_of(OWN, lambda linear: linear)]
        for way in ways:
            why_not = way.why_not(x.device, {kind.computes for kind in self.calls})
            if why_not is None:
                try:
                    self.options.append(option_of(way.name, way.make))
                    continue
                except (Error, RuntimeError) as failure:
                    why_not = one_line(failure)
            self.options.append(Option(way.name, why_not=why_not))

    def find_effects(self, error_of: ErrorOf, floor: float) -> None:
        """Put into the options what they do to the model's answer: it is run with this layer alone
        in the first way that can be, and the others' are in proportion to the layer's own error.

        floor: what any change of this layer makes, however small, as all after it is rounded anew.
            It is taken off; a tenth of what was measured is left at least.
        """
        tried = next((o for o in self.options if o.way != OWN and o.why_not is None), None)
        if tried is None:
            return
        assert tried.error is not None
        why_not = "the model's answer is not finite with it"
        try:
            effect = error_of({id(self.linear): WAYS[tried.way].make(self.linear)})
        except torch.OutOfMemoryError:
            raise
        except Exception as failure:
            effect, why_not = math.inf, f"the model does not run with it: {one_line(failure)}"
        if not math.isfinite(effect):
            self.fail({option.way: why_not for option in self.options[1:]})
            return
        effect = max(0.1 * effect, math.sqrt(max(0.0, effect**2 - floor**2)))
        scale = effect / tried.error if tried.error > 0 else 0.0
        self.options[1:] = [
            option if option.error is None else replace(option, effect=scale * option.error)
            for option in self.options[1:]
        ]

    def usable(self, way: str) -> bool:
        """True if it can be run so."""
        return any(option.way == way and option.why_not is None for option in self.options)

    def fail(self, why_not: dict[str, str]) -> None:
        """Ways, by their names, turned out to be none."""
        self.options = [
            Option(option.way, why_not=why_not[option.way])
            if option.way in why_not and option.why_not is None
            else option
            for option in self.options
        ]


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
def recording(linears: dict[str, torch.nn.Linear]) -> Iterator[list[Candidate]]:
    """While the block runs, calls of these layers are recorded. The list has those that were
    called, in the order of their first calls."""
    called: list[Candidate] = []

    def hook_of(candidate: Candidate) -> Any:
        linear = candidate.linear
        row_bytes = linear.in_features * linear.weight.element_size()
        rows = min(SAMPLE_ROWS, SAMPLE_BYTES // (len(linears) * row_bytes))

        def hook(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs.get("input")
            if isinstance(x, Tensor) and x.dim() > 0 and x.shape[-1] == linear.in_features:
                before = candidate.calls.total()
                candidate.add(x, max(MIN_SAMPLE_ROWS, rows))
                if candidate.calls.total() > before == 0:
                    called.append(candidate)

        return hook

    handles = [
        linear.register_forward_pre_hook(hook_of(Candidate(name, linear)), with_kwargs=True)
        for name, linear in linears.items()
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


class _Rounded(Module):
    """A linear layer computed in FP32, whose result is rounded to its own dtype at random: up or
    down, however near."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self._of = (linear,)  # not a submodule

    def __getattr__(self, name: str) -> Any:
        """The layer's, for models that look at its weight, its bias or its sizes."""
        return getattr(self.__dict__["_of"][0], name)

    def forward(self, input: Tensor) -> Tensor:
        (linear,) = self._of
        dtype = result_dtype(input)
        with torch.autocast(input.device.type, enabled=False):
            bias = None if linear.bias is None else linear.bias.float()
            x, weight = input.float(), linear.weight.float()
            y = torch.nn.functional.linear(x, weight, bias)
            noise = torch.rand_like(y).sub_(0.5).mul_(torch.finfo(dtype).eps)
            return y.addcmul_(y, noise).to(dtype)


def own_error(candidates: Sequence[Candidate], error_of: ErrorOf) -> float:
    """The error that the rounding of linear layers to their own dtype makes in the model's answer:
    of the order of what any change makes, however small, as all that follows is rounded anew."""
    if all(kind.computes == torch.float32 for c in candidates for kind in c.calls):
        return 0.0
    error = error_of({id(c.linear): _Rounded(c.linear) for c in candidates})
    return error if math.isfinite(error) else 0.0
