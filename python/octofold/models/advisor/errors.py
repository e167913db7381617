"""The errors of FP8: that of each layer in each way, and its effect on the model's answer."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error
from ...nn.autograd.functions import result_dtype
from ...nn.conversion.linear import replaced
from .data import Option
from .record import Recorded
from .runs import Runs, answers, answers_error, relative, squares
from .ways import OWN, Way


def module_bytes(module: Module) -> int:
    """The bytes of its parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.nbytes for tensor in tensors)


def options_of(record: Recorded, ways: Sequence[Way], device: torch.device) -> list[Option]:
    """The layer as it is, and each way: errors on its sample, and bytes."""
    linear, kind = record.linear, record.sample_kind
    assert record.sample is not None
    assert kind is not None
    x = record.sample
    bias = None if linear.bias is None else linear.bias.float()
    exact = torch.nn.functional.linear(x.float(), linear.weight.float(), bias)

    def error_of(module: Module) -> float:
        with kind.context(device):
            y: Tensor = module(x)
        return relative(*squares(y, exact))

    own = Option(OWN, error_of(linear), 0.0, None, module_bytes(linear), None)
    return [own, *(_option_of(way, record, device, error_of) for way in ways)]


def _option_of(
    way: Way, record: Recorded, device: torch.device, error_of: Callable[[Module], float]
) -> Option:
    why_not = way.why_not(record.use(device))
    if why_not is None:
        try:
            module = way.make(record.linear)
            error = error_of(module)
        except (Error, RuntimeError) as failure:
            why_not = _one_line(failure)
        else:
            if math.isfinite(error):
                return Option(way.name, error, None, None, module_bytes(module), None)
            why_not = "its output is not finite"
    return Option(way.name, None, None, None, None, why_not)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def failed(option: Option, why_not: str) -> Option:
    """An option that turned out to be none."""
    return Option(option.way, None, None, None, None, why_not)


@contextmanager
def in_place(model: Module, new: dict[int, Module]) -> Iterator[Module]:
    """The model with modules, by the identities of those in whose place they stand, while the
    block runs."""
    old = {id(module): module for module in model.modules() if id(module) in new}
    try:
        yield replaced(model, new)
    finally:
        if id(model) not in new:
            replaced(model, {id(new[key]): module for key, module in old.items()})


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


def own_error(
    records: Sequence[Recorded], model: Module, runs: Runs, expected: list[list[Tensor]]
) -> float:
    """The error that the rounding of linear layers to their own dtype makes in the model's answer:
    of the order of what any change makes, however small, as all that follows is rounded anew."""
    kinds = [kind for record in records for kind in record.calls]
    if all(kind.computes == torch.float32 for kind in kinds):
        return 0.0
    new: dict[int, Module] = {id(r.linear): _Rounded(r.linear) for r in records}
    with in_place(model, new) as changed:
        error = answers_error(answers(runs, changed), expected)
    return error if math.isfinite(error) else 0.0


def with_effects(
    options: list[Option],
    record: Recorded,
    ways: Sequence[Way],
    model: Module,
    runs: Runs,
    expected: list[list[Tensor]],
    floor: float,
) -> list[Option]:
    """The options with their effects on what the model answers: it is run with this layer alone in
    the first way that can be, and the others' are in proportion to the layer's own error.

    floor: what any change of this layer makes, however small, as all after it is rounded anew. It
        is taken off; a tenth of what was measured is left at least.
    """
    by_name = {way.name: way for way in ways}
    tried = next((o for o in options if o.way != OWN and o.why_not is None), None)
    if tried is None or tried.error is None:
        return options
    try:
        with in_place(
            model, {id(record.linear): by_name[tried.way].make(record.linear)}
        ) as changed:
            effect = answers_error(answers(runs, changed), expected)
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        why_not = f"the model does not run with it: {_one_line(failure)}"
        return [o if o.way == OWN else failed(o, o.why_not or why_not) for o in options]
    if not math.isfinite(effect):
        why_not = "the model's answer is not finite with it"
        return [o if o.way == OWN else failed(o, o.why_not or why_not) for o in options]
    effect = max(0.1 * effect, math.sqrt(max(0.0, effect**2 - floor**2)))
    scale = effect / tried.error if tried.error > 0 else 0.0
    return [
        o if o.way == OWN or o.error is None else replace(o, effect=scale * o.error)
        for o in options
    ]
