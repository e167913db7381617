"""Models as the advisor sees them: their linear layers, their device, and what they answer on the
user's inputs."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import Error, invalid_argument
from ...nn.conversion.linear import replaced
from ...nn.conversion.picking import objection
from ...nn.conversion.weight_readers import weight_readers


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" and so on."""
    return str(dtype).removeprefix("torch.")


WIDE: Final = {dtype_name(d): d for d in (torch.bfloat16, torch.float16, torch.float32)}
"""The dtypes that layers compute in, by these names."""

_SEED: Final = 0
_ATTENTION: Final = (
    "attention computes in its own dtype: octofold.attention is for keys and values that a server "
    "keeps in FP8, and no plan puts it into a model"
)
_INPUTS: Final = (
    "a tensor, a tuple of arguments, a dict of keyword arguments, a list of such, or a function "
    "that runs the model"
)


def linears_of(model: Module) -> tuple[dict[str, torch.nn.Linear], dict[str, str]]:
    """The torch.nn.Linear of a model by the first of their names; and by it, why some of them must
    stay as they are."""
    places: defaultdict[int, dict[int, str]] = defaultdict(dict)
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            places[id(parameter)].setdefault(id(module), f"{path}.{key}".lstrip("."))
    modules = model.named_modules()
    linears = {path: module for path, module in modules if type(module) is torch.nn.Linear}
    alone: dict[str, str] = {}
    readers = weight_readers(model)
    for path, linear in linears.items():
        why = readers.get(id(linear)) or _why_alone(linear)
        if why is None and len(tied := [*places[id(linear.weight)].values()]) > 1:
            why = f"its weight is tied: {tied[0]} is the same"
        if why is not None:
            alone[path] = why
    return linears, alone


def _why_alone(linear: torch.nn.Linear) -> str | None:
    if linear._forward_hooks or linear._forward_pre_hooks:
        return "it has hooks, which another layer would lose"
    if (why := objection(linear)) is not None:
        return why
    if linear.weight.dtype not in WIDE.values():
        return f"its weight is {dtype_name(linear.weight.dtype)}"
    if hasattr(linear.weight, "device_mesh"):
        return "its weight is sharded"
    return None if linear.weight.numel() else "its weight is empty"


def others_of(model: Module) -> list[tuple[str, int, str]]:
    """The modules that compute products but are no torch.nn.Linear: (class, how many, why no way is
    for them)."""
    counts = Counter(
        (type(module).__name__, why)
        for module in model.modules()
        if (why := _why_other(module)) is not None
    )
    return [(kind, count, why) for (kind, why), count in sorted(counts.items())]


def _why_other(module: Module) -> str | None:
    name = type(module).__name__
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return "no operation for convolutions"
    if isinstance(module, torch.nn.Linear):
        own = type(module) is torch.nn.Linear
        return None if own else "a class of its own made of torch.nn.Linear"
    if name == "Conv1D":  # transformers' GPT-2
        return "a linear layer with its weight transposed: no torch.nn.Linear"
    if name.endswith("Experts"):
        return "experts: octofold.nn.convert_experts is for these"
    if isinstance(module, torch.nn.MultiheadAttention) or name.endswith("Attention"):
        return _ATTENTION
    return None


def bytes_of(module: Module) -> int:
    """The bytes of all parameters and buffers, those that are shared counted once."""
    return sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])


def fingerprint(model: Module) -> str:
    """The hash of names, shapes and dtypes of all parameters and buffers: same for models that a
    plan fits alike, whatever their values."""
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    kinds = [(name, value, getattr(value, "codes", value).dtype) for name, value in tensors]
    lines = sorted(f"{name} {list(value.shape)} {dtype}" for name, value, dtype in kinds)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def device_of(operation: str, model: Module) -> torch.device:
    """The one device that a model lies on: a GPU that Octofold drives, or the CPU."""
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    names = ", ".join(sorted(map(str, devices)))
    for expected, holds in (
        ("a model with its weights in memory", all(d.type != "meta" for d in devices)),
        ("a model on one device", len(devices) < 2),
        ("a model on the CPU or on a CUDA GPU", all(d.type in ("cpu", "cuda") for d in devices)),
    ):
        if not holds:
            raise invalid_argument(operation, "model", expected, names)
    return devices.pop() if devices else torch.device("cpu")


def machine_of(device: torch.device) -> str:
    """The device's name, and a GPU's compute capability."""
    if device.type != "cuda":
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} ({major}.{minor})"


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


@contextmanager
def evaluating(model: Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode, no gradients, and the caller's random numbers left alone."""
    modes = [(module, module.training) for module in model.modules()]
    on_gpu = device.type == "cuda"
    current = torch.cuda.device(device) if on_gpu else nullcontext()
    try:
        model.eval()
        with torch.no_grad(), current, torch.random.fork_rng([device] if on_gpu else []):
            yield
    finally:
        for module, training in modes:
            module.training = training


Runs: TypeAlias = list[Callable[[Module], Any]]
"""Each runs the model once and returns what it answers."""
Answers: TypeAlias = list[list[Tensor]]
"""The floating-point tensors that each run answers, in the order in which they stand."""


def runs_of(operation: str, inputs: Any) -> Runs:
    """The runs that `inputs` stands for: a tensor, a tuple of arguments, a mapping of keyword
    arguments, a list of these, or a function of the model."""

    def run_of(part: Any) -> Callable[[Module], Any]:
        got = type(part).__qualname__
        if isinstance(part, Tensor):
            return lambda model: model(part)
        if isinstance(part, tuple):
            return lambda model: model(*part)
        if isinstance(part, Mapping):
            if all(isinstance(name, str) for name in part):
                return lambda model: model(**part)
            got = "a mapping whose keys are not all strings"
        elif callable(part) and not isinstance(part, Module):
            return part  # type: ignore[no-any-return]
        raise invalid_argument(operation, "inputs", _INPUTS, got)

    parts = inputs if isinstance(inputs, list) else [inputs]
    if not parts:
        raise invalid_argument(operation, "inputs", _INPUTS, "an empty list")
    return [run_of(part) for part in parts]


def first_answers(operation: str, runs: Runs, model: Module) -> Answers:
    """answers() of the model as it is, which the caller's inputs have to fit."""
    try:
        found = answers(runs, model)
    except (Error, KeyboardInterrupt, torch.OutOfMemoryError):
        raise
    except Exception as error:
        expected = "inputs that the model runs on"
        raise invalid_argument(operation, "inputs", expected, one_line(error)) from error
    for tensors in found:
        if not tensors:
            expected = "a run that gives tensors of floating-point numbers, to compare"
            raise invalid_argument(operation, "inputs", expected, "a run that gives none")
        if any(bool(t.isnan().any()) or not bool(t.isfinite().any()) for t in tensors):
            expected = "a run whose answer holds finite numbers"
            raise invalid_argument(operation, "inputs", expected, "NaN, or infinities alone")
    return found


def answers(runs: Runs, model: Module) -> Answers:
    """The answers of all runs, each from the same seed."""
    found = []
    for run in runs:
        torch.manual_seed(_SEED)
        found.append([tensor.detach().clone() for tensor in _tensors_in(run(model))])
    return found


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of tuples, lists, mappings and dataclasses, in their order."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() > 0:
            yield value
        return
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [*value.values()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        parts = [*value]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    for part in parts:
        yield from _tensors_in(part)


def answers_error(found: Answers, expected: Answers) -> float:
    """‖found − expected‖ / ‖expected‖ over all runs, of the tensor of an answer where it is
    largest. Infinite where an answer has another shape, or is not finite where it was."""
    differences: defaultdict[int, float] = defaultdict(float)
    norms: defaultdict[int, float] = defaultdict(float)
    for mine, theirs in zip(found, expected, strict=True):
        if [tensor.shape for tensor in mine] != [tensor.shape for tensor in theirs]:
            return math.inf
        for index, (actual, wanted) in enumerate(zip(mine, theirs, strict=True)):
            difference, norm = squares(actual, wanted)
            differences[index] += difference
            norms[index] += norm
    return max(relative(differences[index], norms[index]) for index in norms)


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


def one_line(error: Exception) -> str:
    """The class and the message of an error, in a line that is not too long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
