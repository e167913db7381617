"""The advisor: which layers of a model gain by FP8, measured on the user's inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch.nn import Module

from ..._core.errors import UnsupportedError, invalid_argument, require_type
from ..._core.library import Progress
from ..._info import info
from .layers import Candidate, own_error, recording
from .model import (
    Answers,
    Runs,
    answers,
    answers_error,
    bytes_of,
    device_of,
    dtype_name,
    evaluating,
    fingerprint,
    first_answers,
    in_place,
    linears_of,
    machine_of,
    others_of,
    runs_of,
)
from .plan import FORMAT, TARGETS, Calls, Layer, Other, Plan, Whole
from .search import Found, Picked, choices_of, within_bytes, within_error
from .times import groups_of, measurable, time_group, whole_times, why_no_graph
from .ways import OWN, WAYS, Way, ways_of

_NAME: Final = "octofold.models.advise"
DEFAULT_MAX_ERROR: Final = 0.05
GRAPH: Final = "CUDA graph"
PYTHON: Final = "calls from Python"


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
    require_type(_NAME, "model", model, Module, "a torch.nn.Module")
    chosen_ways = ways_of(_NAME, ways)
    runs = runs_of(_NAME, inputs)
    device = device_of(_NAME, model)
    target, max_error = _aim(target, max_error, max_bytes, measurable(device))
    linears, why_alone = linears_of(model)
    if len(linears) == len(why_alone):
        got = f"{type(model).__qualname__} with none that can be" + "".join(
            f" ({name}: {why})" for name, why in list(why_alone.items())[:1]
        )
        raise invalid_argument(
            _NAME, "model", "a model with torch.nn.Linear layers that can run in FP8", got
        )
    with evaluating(model, device):
        steps = _Steps(progress, len(linears) + 3)
        steps.step()
        advisor = _Advisor(model, runs, device, steps, target, max_error, max_bytes)
        advisor.record(linears, why_alone)
        advisor.measure(chosen_ways, effects)
        plan = advisor.plan(advisor.search())
        own_time, planned_time = plan.whole.seconds_own, plan.whole.seconds_planned
        if target == "time" and own_time and planned_time and planned_time >= own_time:
            advisor.notes.append(
                "the plan was not faster than the model as it is, so nothing is changed: "
                f"{planned_time * 1e3:.3f} ms beside {own_time * 1e3:.3f}"
            )
            why = "the model as a whole is no faster with the plan that it was part of"
            plan = advisor.plan(Found([None] * len(advisor.candidates), 0.0, 0.0, why))
        steps.done = max(steps.done, steps.total) - 1
        steps.step()
    return plan


def _aim(
    target: str | None, max_error: float | None, max_bytes: int | None, timed: bool
) -> tuple[str, float | None]:
    """The target and the bound on the error, with their defaults."""
    if target is not None and target not in TARGETS:
        raise invalid_argument(_NAME, "target", f"one of {', '.join(TARGETS)}", repr(target))
    if target == "time" and not timed:
        raise UnsupportedError(
            f'{_NAME}: argument \'target\': expected "bytes" or "error" without a GPU, where '
            'times say nothing, got "time"'
        )
    if target is None:
        target = "error" if max_bytes is not None else "time" if timed else "bytes"
    kinds: dict[str, tuple[object, Any]] = {
        "max_error": (max_error, int | float),
        "max_bytes": (max_bytes, int),
    }
    bound, other = [*kinds] if target != "error" else [*kinds][::-1]
    for name, (value, kind) in kinds.items():
        good = isinstance(value, kind) and not isinstance(value, bool) and value > 0
        if value is not None and not good:
            raise invalid_argument(_NAME, name, "a number above 0", repr(value))
        if value is not None and name == other:
            expected = f'none with target "{target}", whose bound is {bound}'
            raise invalid_argument(_NAME, name, expected, repr(value))
    if target == "error" and max_bytes is None:
        raise invalid_argument(_NAME, "max_bytes", 'a number, the bound of target "error"', "none")
    return target, DEFAULT_MAX_ERROR if max_error is None and target != "error" else max_error


@dataclass
class _Steps:
    """Tells a caller how many steps are done, of how many."""

    progress: Progress | None
    total: int
    done: int = -1

    def step(self, more: int = 0) -> None:
        """One is done (the first call: none), and more came to be known of."""
        self.done, self.total = self.done + 1, self.total + more
        if self.progress is not None:
            self.progress(self.done, max(self.done, self.total))


@dataclass
class _Advisor:
    """The findings of one advise() so far."""

    model: Module
    runs: Runs
    device: torch.device
    steps: _Steps
    target: str
    max_error: float | None
    max_bytes: int | None
    candidates: Sequence[Candidate] = ()
    alone: Sequence[Candidate] = ()
    notes: list[str] = field(default_factory=list)
    timing: str | None = None
    """How times are taken; None: there are none."""
    floor: float = 0.0
    """The error that rounding makes in the model as it is."""
    expected: Answers = field(default_factory=list)

    def record(self, linears: dict[str, torch.nn.Linear], why_alone: dict[str, str]) -> None:
        """The layers that a run calls, and those that stay: by their names, and why."""
        usable = {name: linear for name, linear in linears.items() if name not in why_alone}
        with recording(usable) as self.candidates:
            self.expected = first_answers(_NAME, self.runs, self.model)
        if not self.candidates:
            expected = "a run that calls a torch.nn.Linear of the model"
            raise invalid_argument(_NAME, "inputs", expected, "a run that calls none")
        names = {candidate.name for candidate in self.candidates}
        self.alone = [
            Candidate(name, linear, why_alone=why_alone.get(name, "these inputs do not call it"))
            for name, linear in linears.items()
            if name not in names
        ]
        self.steps.step()

    def measure(self, ways: Sequence[Way], effects: bool) -> None:
        """Errors, effects and times of all layers."""
        if (again := self._error({})) > 0:
            self.notes.append(f"the model as it is differs by {again:.1e} from run to run")
        self.floor = own_error(self.candidates, self._error)
        for index, candidate in enumerate(self.candidates):
            candidate.measure(ways)
            if effects:  # the layers that follow round on their own
                following = 1 - (index + 1) / len(self.candidates)
                candidate.find_effects(self._error, self.floor * math.sqrt(following))
            else:
                own, *others = candidate.options
                candidate.options = [own, *(replace(o, effect=o.error) for o in others)]
            self.steps.step()
        if measurable(self.device):
            self._measure_times()
        else:
            self.notes.append("without a GPU errors and bytes are measured, and times are left out")

    def _measure_times(self) -> None:
        reason = why_no_graph(self.runs, self.model)
        self.timing = GRAPH if reason is None else PYTHON
        if reason is not None:
            self.notes.append(f"times are of {PYTHON}, as no CUDA graph can be made: {reason}")
        all_bytes = sum(candidate.linear.weight.nbytes for candidate in self.candidates)
        for group in groups_of(self.candidates):
            time_group(group, all_bytes, self.timing == GRAPH)
            self.steps.step(more=1)

    def _error(self, new: dict[int, Module]) -> float:
        """The error of the model's answer with these modules in the place of others."""
        with in_place(self.model, new) as changed:
            return answers_error(answers(self.runs, changed), self.expected)

    def search(self) -> Found:
        """The picks that the target and its bound ask for."""

        def check(picked: Picked) -> float:
            error = self._error(self._modules(picked))
            self.steps.step(more=1)
            return error

        layers = [choices_of(candidate.options, self.target) for candidate in self.candidates]
        if self.max_bytes is None:
            assert self.max_error is not None
            return within_error(layers, self.max_error, self.floor, check)
        have = bytes_of(self.model)
        found = within_bytes(layers, have - self.max_bytes, self.floor, check)
        if found is None:
            least = have - sum(max((c.gain for c in choices), default=0.0) for choices in layers)
            expected = f"at least {least:.0f}, which FP8 in every layer that can be leaves"
            raise invalid_argument(_NAME, "max_bytes", expected, self.max_bytes)
        return found

    def _modules(self, picked: Picked) -> dict[int, Module]:
        """The modules that are to stand in the place of layers, by the layers' identities."""
        return {
            id(candidate.linear): WAYS[choice.way].make(candidate.linear)
            for candidate, choice in zip(self.candidates, picked, strict=True)
            if choice is not None
        }

    def plan(self, found: Found) -> Plan:
        """The plan as a value."""
        layers = [
            self._layer(candidate, OWN if choice is None else choice.way, found.why_none)
            for candidate, choice in zip(self.candidates, found.picked, strict=True)
        ]
        layers += [self._layer(candidate, OWN, "") for candidate in self.alone]
        return Plan(
            format=FORMAT,
            octofold=info().version,
            torch=str(torch.__version__),
            machine=machine_of(self.device),
            model=type(self.model).__qualname__,
            fingerprint=fingerprint(self.model),
            target=self.target,
            max_error=self.max_error,
            max_bytes=self.max_bytes,
            timing=self.timing,
            runs=len(self.runs),
            layers=tuple(layers),
            others=tuple(Other(*each) for each in others_of(self.model)),
            whole=self._whole(layers, found),
            notes=tuple(self.notes),
        )

    def _layer(self, candidate: Candidate, chosen: str, why_none: str) -> Layer:
        linear = candidate.linear
        return Layer(
            name=candidate.name,
            in_features=linear.in_features,
            out_features=linear.out_features,
            dtype=dtype_name(linear.weight.dtype),
            calls=tuple(
                Calls(kind.rows, dtype_name(kind.computes), count)
                for kind, count in candidate.calls.items()
            ),
            options=tuple(candidate.options),
            chosen=chosen,
            why_own=self._why_own(candidate, why_none) if chosen == OWN else None,
        )

    def _why_own(self, candidate: Candidate, why_none: str) -> str:
        options = candidate.options
        if candidate.why_alone:
            return candidate.why_alone
        usable = [option for option in options[1:] if option.why_not is None]
        if not usable:
            return "no way can run it: " + "; ".join({str(o.why_not): None for o in options[1:]})
        if not choices_of(options, self.target):
            return "no way is faster here" if self.target == "time" else "no way takes less memory"
        if why_none:
            return why_none
        if self.target == "error":
            return "the bound on bytes is kept without it"
        least = min(option.effect for option in usable if option.effect is not None)
        return f"other layers gain more for the error that is allowed (it alone makes {least:.1e})"

    def _whole(self, layers: Sequence[Layer], found: Found) -> Whole:
        def saved(timed: bool) -> float:
            return sum(layer.own.amount(timed) - layer.planned.amount(timed) for layer in layers)

        times: dict[str, float] = {}
        if self.timing is not None:
            modules = self._modules(found.picked)
            times = whole_times(self.runs, self.model, modules, self.timing == GRAPH)
            times["seconds_predicted"] = times["seconds_own"] - saved(timed=True)
        have = bytes_of(self.model)
        return Whole(
            bytes_own=have,
            bytes_planned=have - round(saved(timed=False)),
            error_own=self.floor,
            error_predicted=found.predicted,
            error=found.error,
            **times,
        )
