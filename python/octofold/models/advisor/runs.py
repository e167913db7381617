"""Running a model on the user's inputs, and comparing what it answers."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error, InvalidArgumentError, invalid_argument

_SEED: Final = 0

Runs: TypeAlias = list[Callable[[Module], Any]]
"""Each runs the model once and returns what it answers."""


def runs_of(operation: str, inputs: Any) -> Runs:
    """The runs that `inputs` stands for: a tensor, a tuple of arguments, a mapping of keyword
    arguments, a list of these, or a function of the model."""
    parts = inputs if isinstance(inputs, list) else [inputs]
    if not parts:
        raise _wrong_inputs(operation, "an empty list")
    return [_run_of(operation, part) for part in parts]


def _run_of(operation: str, part: Any) -> Callable[[Module], Any]:
    if isinstance(part, Module):
        raise _wrong_inputs(operation, "a module")
    if isinstance(part, Tensor):
        return lambda model: model(part)
    if isinstance(part, tuple):
        return lambda model: model(*part)
    if isinstance(part, Mapping):
        if not all(isinstance(name, str) for name in part):
            raise _wrong_inputs(operation, "a mapping whose keys are not all strings")
        return lambda model: model(**part)
    if callable(part):
        return part  # type: ignore[no-any-return]
    raise _wrong_inputs(operation, type(part).__qualname__)


def _wrong_inputs(operation: str, got: str) -> InvalidArgumentError:
    expected = (
        "a tensor, a tuple of arguments, a dict of keyword arguments, a list of such, or a "
        "function that runs the model"
    )
    return invalid_argument(operation, "inputs", expected, got)


@contextmanager
def evaluating(model: Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode, no gradients, and the caller's random numbers left alone."""
    modes = [(module, module.training) for module in model.modules()]
    on_gpu = device.type == "cuda"
    current = torch.cuda.device(device) if on_gpu else nullcontext()
    devices = [device] if on_gpu else []
    try:
        model.eval()
        with torch.no_grad(), current, torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training


def first_answers(operation: str, runs: Runs, model: Module) -> list[list[Tensor]]:
    """answers() of the model as it is, which the caller's inputs have to fit."""
    try:
        found = answers(runs, model)
    except (Error, KeyboardInterrupt, torch.OutOfMemoryError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        expected = "inputs that the model runs on"
        raise invalid_argument(operation, "inputs", expected, words) from error
    for tensors in found:
        if not tensors:
            expected = "a run that gives tensors of floating-point numbers, to compare"
            raise invalid_argument(operation, "inputs", expected, "a run that gives none")
        if any(bool(t.isnan().any()) or not bool(t.isfinite().any()) for t in tensors):
            expected = "a run whose answer holds finite numbers"
            raise invalid_argument(operation, "inputs", expected, "NaN, or infinities alone")
    return found


def answers(runs: Runs, model: Module) -> list[list[Tensor]]:
    """The answers of each run: its floating-point tensors, in the order in which they stand."""
    found = []
    for run in runs:
        torch.manual_seed(_SEED)
        found.append([tensor.detach().clone() for tensor in tensors_in(run(model))])
    return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of tuples, lists, mappings and dataclasses, in their order."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() > 0:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def answers_error(found: list[list[Tensor]], expected: list[list[Tensor]]) -> float:
    """‖found − expected‖ / ‖expected‖ over all runs, of the tensor of an answer where it is
    largest. Infinite where an answer has another shape, or is not finite where it was."""
    pairs: dict[int, list[float]] = {}
    for mine, theirs in zip(found, expected, strict=True):
        if [tensor.shape for tensor in mine] != [tensor.shape for tensor in theirs]:
            return math.inf
        for index, (actual, wanted) in enumerate(zip(mine, theirs, strict=True)):
            difference, norm = squares(actual, wanted)
            sums = pairs.setdefault(index, [0.0, 0.0])
            sums[0] += difference
            sums[1] += norm
    return max(relative(*sums) for sums in pairs.values())


def squares(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """‖actual − expected‖² and ‖expected‖², where `expected` is finite."""
    finite = torch.isfinite(expected)
    wanted = torch.where(finite, expected, 0).float()
    difference = torch.where(finite, actual, 0).float() - wanted
    norms = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (difference, wanted)]
    return float(norms[0]) ** 2, float(norms[1]) ** 2


def relative(difference: float, norm: float) -> float:
    """The relative error of two sums of squares; 0 where nothing differs, infinite where that is
    not a number."""
    if difference == 0:
        return 0.0
    return math.sqrt(difference / norm) if norm > 0 and math.isfinite(difference) else math.inf
