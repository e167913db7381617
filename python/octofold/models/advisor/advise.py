"""The advisor: which layers of a model gain by FP8, measured on the user's inputs."""

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import UnsupportedError, invalid_argument
from ..._core.library import Progress
from ..._info import info
from .data import Calls, Layer, Plan, Whole
from .errors import in_place, options_of, own_error, with_effects
from .files import FORMAT, device_of, fingerprint, machine_of, model_bytes
from .record import Recorded, dtype_name, linears_of, others_of, recording
from .runs import Runs, answers, answers_error, evaluating, first_answers, runs_of
from .search import Choice, Found, Picked, choices_of, within_bytes, within_error
from .times import (
    GRAPH,
    PYTHON,
    Candidate,
    WholeTimes,
    groups_of,
    measurable,
    time_group,
    whole_times,
    why_no_graph,
)
from .ways import OWN, WAYS, Way, ways_of

_NAME: Final = "octofold.models.advise"
DEFAULT_MAX_ERROR: Final = 0.05
_TARGETS: Final = ("time", "bytes", "error")


def advise(
    model: Module,
    inputs: Any,
    target: str | None = None,
    *,
    max_error: float | None = None,
    max_bytes: int | None = None,
    ways: Sequence[str] | None = None,
    effects: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """Run a model, measure what each of its torch.nn.Linear costs in each strategy, and pick.

    model: on one GPU, or on the CPU, where times are not measured. It is left as it is; meanwhile
        memory holds the layers in FP8 too, and up to 256 MB of their inputs.
    inputs: what the model is to be good and fast at: a tensor, a tuple of arguments, a dict of
        keyword arguments, or a list of these, each of which is a run; or a function that takes the
        model, runs it and returns its answer, floating-point tensors in tuples, lists, mappings or
        dataclasses.
    target: what to minimize: "time" (the default on a GPU) or "bytes" (the default without one),
        under the bound on the error; or "error" (the default with max_bytes), under the bound on
        bytes.
    max_error: the bound on the ‖difference‖ / ‖answer‖ that FP8 causes in the model's answer, for
        the tensor of an answer where it is largest; 0.05 by default.
    max_bytes: the bound on all of the model's parameters and buffers.
    ways: names of octofold.models.advisor.ways.WAYS to choose among; None: all.
    effects: True: measure for each layer what it does to the model's answer, by a run of the whole
        model with this one layer in FP8. False: take its own error for that, which saves these
        runs.
    progress: called as progress(done, total) as steps are done.

    The model runs in evaluation mode, without gradients, from one seed. The layers that a plan
    makes are for inference. docs/advisor.md says how it is measured and picked.
    Returns a Plan; octofold.models.apply() applies it to the model.
    Raises InvalidArgumentError, which names the argument, `max_bytes` if no plan keeps it.
    """
    _require(model, target, max_error, max_bytes)
    chosen_ways = ways_of(_NAME, ways)
    runs = runs_of(_NAME, inputs)
    device = device_of(_NAME, model)
    on_gpu = measurable(device)
    if target == "time" and not on_gpu:
        raise UnsupportedError(
            f'{_NAME}: argument \'target\': expected "bytes" or "error" without a GPU, where '
            'times say nothing, got "time"'
        )
    if target is None:
        target = "error" if max_bytes is not None else "time" if on_gpu else "bytes"
    if target != "error" and max_error is None:
        max_error = DEFAULT_MAX_ERROR
    linears, alone = linears_of(model)
    if not linears:
        got = f"{type(model).__qualname__} with none that can be" + "".join(
            f" ({name}: {why})" for name, why in list(alone.items())[:1]
        )
        raise invalid_argument(
            _NAME, "model", "a model with torch.nn.Linear layers that can run in FP8", got
        )

    with evaluating(model, device):
        advisor = Advisor(model, runs, device, chosen_ways, ProgressSteps(progress, len(linears)))
        advisor.measure(linears, effects)
        found = advisor.search(target, max_error, max_bytes)
        times = advisor.times(found)
        if target == "time" and times is not None and times.planned >= times.own:
            advisor.notes.append(
                "the plan was not faster than the model as it is, so nothing is changed: "
                f"{times.planned * 1e3:.3f} ms beside {times.own * 1e3:.3f}"
            )
            why = "the model as a whole is no faster with the plan that it was part of"
            found = Found([None] * len(advisor.candidates), 0.0, 0.0, why)
            times = advisor.times(found)
        advisor.steps.done()
    uncalled = dict.fromkeys(linears, "these inputs do not call it")
    return advisor.plan(target, max_error, max_bytes, found, times, {**uncalled, **alone})


def _require(model: object, target: object, max_error: object, max_bytes: object) -> None:
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    if target is not None and target not in _TARGETS:
        raise invalid_argument(_NAME, "target", f"one of {', '.join(_TARGETS)}", repr(target))
    for name, value, kinds in (
        ("max_error", max_error, (int, float)),
        ("max_bytes", max_bytes, int),
    ):
        good = isinstance(value, kinds) and not isinstance(value, bool) and value > 0
        if value is not None and not good:
            raise invalid_argument(_NAME, name, "a number above 0", repr(value))
    if max_error is not None and max_bytes is not None:
        expected = "none beside max_error: one of the two is the bound, the other is minimized"
        raise invalid_argument(_NAME, "max_bytes", expected, repr(max_bytes))
    bound = "max_bytes" if target == "error" else "max_error"
    other, value = ("max_error", max_error) if target == "error" else ("max_bytes", max_bytes)
    if target is not None and value is not None:
        expected = f'none with target "{target}", whose bound is {bound}'
        raise invalid_argument(_NAME, other, expected, repr(value))
    if target == "error" and max_bytes is None:
        raise invalid_argument(_NAME, "max_bytes", 'a number, the bound of target "error"', "none")


class ProgressSteps:
    """Tells a caller how many steps are done, of how many."""

    def __init__(self, progress: Progress | None, layers: int) -> None:
        self._progress = progress
        self._done, self._total = 0, layers + 3
        self._tell()

    def add(self, steps: int) -> None:
        """More came to be known of."""
        self._total += steps

    def step(self) -> None:
        """One is done."""
        self._done += 1
        self._tell()

    def done(self) -> None:
        """All are."""
        self._done = self._total
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


class Advisor:
    """The findings of one advise() so far."""

    def __init__(
        self,
        model: Module,
        runs: Runs,
        device: torch.device,
        ways: tuple[Way, ...],
        steps: ProgressSteps,
    ) -> None:
        self.model, self.runs, self.device, self.ways, self.steps = model, runs, device, ways, steps
        self.candidates: list[Candidate] = []
        self.notes: list[str] = []
        self.graph: bool | None = None
        """True if times are those of CUDA graphs; None: there are no times."""
        self.floor = 0.0
        """The error that rounding makes in the model as it is."""
        self._expected: list[list[Tensor]] = []

    def measure(self, linears: dict[str, torch.nn.Linear], effects: bool) -> None:
        """Errors, effects and times of all layers."""
        with recording(linears) as records:
            self._expected = first_answers(_NAME, self.runs, self.model)
        called = [record for record in records if record.calls]
        if not called:
            expected = "a run that calls a torch.nn.Linear of the model"
            raise invalid_argument(_NAME, "inputs", expected, "a run that calls none")
        self.steps.step()
        self._note_repeatability()
        self.floor = own_error(called, self.model, self.runs, self._expected)
        for index, record in enumerate(called):
            following = 1 - (index + 1) / len(called)  # of the layers: each rounds on its own
            floor = self.floor * math.sqrt(following)
            self.candidates.append(self._candidate(record, effects, floor))
            self.steps.step()
        if not measurable(self.device):
            self.notes.append("without a GPU errors and bytes are measured, and times are left out")
            return
        reason = why_no_graph(self.runs, self.model)
        self.graph = reason is None
        if reason is not None:
            self.notes.append(
                f"times are of calls from Python, as no CUDA graph can be made: {reason}"
            )
        groups = groups_of(self.candidates)
        all_bytes = sum(r.linear.weight.numel() * r.linear.weight.element_size() for r in called)
        self.steps.add(len(groups))
        for group in groups:
            time_group(group, self.ways, self.device, all_bytes, self.graph)
            self.steps.step()

    def _note_repeatability(self) -> None:
        again = answers_error(answers(self.runs, self.model), self._expected)
        if again > 0:
            self.notes.append(f"the model as it is differs by {again:.1e} from run to run")

    def _candidate(self, record: Recorded, effects: bool, floor: float) -> Candidate:
        options = options_of(record, self.ways, self.device)
        if effects:
            arguments = self.ways, self.model, self.runs, self._expected, floor
            return Candidate(record, with_effects(options, record, *arguments))
        return Candidate(record, [option.with_effect(option.error) for option in options])

    def search(self, target: str, max_error: float | None, max_bytes: int | None) -> Found:
        """The plan that the target and its bound ask for."""
        layers = [choices_of(candidate.options, target) for candidate in self.candidates]
        if max_bytes is None:
            assert max_error is not None
            return within_error(layers, max_error, self.floor, self._check)
        have = model_bytes(self.model)
        found = within_bytes(layers, have - max_bytes, self.floor, self._check)
        if found is None:
            least = have - sum(max((c.gain for c in choices), default=0.0) for choices in layers)
            expected = f"at least {least:.0f}, which FP8 in every layer that can be leaves"
            raise invalid_argument(_NAME, "max_bytes", expected, max_bytes)
        return found

    def _check(self, picked: Picked) -> float:
        """The error of the whole model with these."""
        self.steps.add(1)
        with in_place(self.model, self.modules(picked)) as changed:
            error = answers_error(answers(self.runs, changed), self._expected)
        self.steps.step()
        return error

    def times(self, found: Found) -> WholeTimes | None:
        """The times of the whole model as it is and with these picks; None without a GPU."""
        if self.graph is None:
            return None
        return whole_times(self.runs, self.model, self.modules(found.picked), self.graph)

    def modules(self, picked: Picked) -> dict[int, Module]:
        """The modules that are to stand in the place of layers, by the layers' identities."""
        pairs = zip(self.candidates, picked, strict=True)
        return {
            id(candidate.record.linear): WAYS[choice.way].make(candidate.record.linear)
            for candidate, choice in pairs
            if choice is not None
        }

    def plan(
        self,
        target: str,
        max_error: float | None,
        max_bytes: int | None,
        found: Found,
        times: WholeTimes | None,
        alone: dict[str, str],
    ) -> Plan:
        """The plan as a value. alone: why layers that are no candidates stay."""
        pairs = zip(self.candidates, found.picked, strict=True)
        layers = [_layer(candidate, choice, target, found.why_none) for candidate, choice in pairs]
        measured = {layer.name for layer in layers}
        by_name = dict(self.model.named_modules())
        for name, why in alone.items():
            linear = by_name[name]
            if name not in measured and isinstance(linear, torch.nn.Linear):
                size = linear.in_features, linear.out_features
                dtype = dtype_name(linear.weight.dtype)
                layers.append(Layer(name, *size, dtype, (), (), OWN, why))
        return Plan(
            format=FORMAT,
            octofold=info().version,
            torch=str(torch.__version__),
            machine=machine_of(self.device),
            model=type(self.model).__qualname__,
            fingerprint=fingerprint(self.model),
            target=target,
            max_error=max_error,
            max_bytes=max_bytes,
            timing=None if self.graph is None else GRAPH if self.graph else PYTHON,
            runs=len(self.runs),
            layers=tuple(layers),
            others=others_of(self.model),
            whole=self._whole(layers, found, times),
            notes=tuple(self.notes),
        )

    def _whole(self, layers: Sequence[Layer], found: Found, times: WholeTimes | None) -> Whole:
        saved, gained = 0, 0.0
        for layer in layers:
            own, planned = layer.own, layer.planned
            if own is None or planned is None:
                continue
            saved += (own.bytes or 0) - (planned.bytes or 0)
            gained += (own.seconds or 0.0) - (planned.seconds or 0.0)
        have = model_bytes(self.model)
        return Whole(
            bytes_own=have,
            bytes_planned=have - saved,
            error_own=self.floor,
            error_predicted=found.predicted,
            error=found.error,
            seconds_own=None if times is None else times.own,
            seconds_predicted=None if times is None else times.own - gained,
            seconds_planned=None if times is None else times.planned,
            seconds_own_from_python=None if times is None else times.own_from_python,
            seconds_planned_from_python=None if times is None else times.planned_from_python,
        )


def _layer(candidate: Candidate, choice: Choice | None, target: str, why_none: str) -> Layer:
    record = candidate.record
    linear = record.linear
    return Layer(
        name=record.name,
        in_features=linear.in_features,
        out_features=linear.out_features,
        dtype=dtype_name(linear.weight.dtype),
        calls=tuple(
            Calls(kind.rows, dtype_name(kind.computes), count)
            for kind, count in record.calls.items()
        ),
        options=tuple(candidate.options),
        chosen=OWN if choice is None else choice.way,
        why_own=None if choice is not None else _why_own(candidate, target, why_none),
    )


def _why_own(candidate: Candidate, target: str, why_none: str) -> str:
    usable = [o for o in candidate.options if o.way != OWN and o.why_not is None]
    if not usable:
        reasons = {o.why_not: None for o in candidate.options if o.why_not is not None}
        return "no way can run it: " + "; ".join(map(str, reasons))
    if not choices_of(candidate.options, target):
        return "no way is faster here" if target == "time" else "no way takes less memory"
    if why_none:
        return why_none
    if target == "error":
        return "the bound on bytes is kept without it"
    least = min(option.effect for option in usable if option.effect is not None)
    if not math.isfinite(least):
        return "the answer is not finite with it"
    return f"other layers gain more for the error that is allowed (it alone makes {least:.1e})"
