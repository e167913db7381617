"""Casts of weights that are made once a step, behind the optimizer's, and not in each forward."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from ..._core.errors import invalid_argument
from ..._core.formats import Format
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ops.cast import Target
from ..._ops.cast_many import CastJob, cast_many
from .casts import WeightCasts, cast_weight, joined, walkable


class Version(NamedTuple):
    """A parameter as it was when casts were made of it: by torch's count of writes, and by the
    memory that it had."""

    parameter: Tensor
    version: int
    address: int
    memory: Tensor
    """Held, so that no other weight gets it, and the address with it."""

    @staticmethod
    def of(parameter: Tensor) -> "Version":
        return Version(parameter, parameter._version, parameter.data_ptr(), parameter.data)

    def is_current(self) -> bool:
        return self.parameter._version == self.version and not self.has_moved()

    def has_moved(self) -> bool:
        """True if the parameter has other memory, or reads the same in another way."""
        now, then = self.parameter, self.memory
        if now.data_ptr() != self.address or now.dtype != then.dtype:
            return True
        return not (now.is_meta or now.is_set_to(then)) or now.is_neg() != then.is_neg()


_NAME: Final = "octofold.nn.cast_after_step"
_ATTRIBUTE: Final = "_octofold_step_casts"
"""The attribute of a parameter that has places in casts: a tuple of _Place."""

_is_compiling: Final = torch.compiler.is_compiling

Weights: TypeAlias = tuple[Tensor, ...]
"""One, or several that are one below the other in a product."""


def cast_after_step(optimizer: Optimizer | Sequence[Optimizer], model: Module) -> "CastsAfterStep":
    """Cast the weights of a model's FP8 layers now, and again after each step of its optimizer: no
    forward casts them in between. All of them take few launches (octofold.ops.cast_many()), and in
    a CUDA graph a forward that is captured reads casts that the captured or eager step renews.

    >>> optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    >>> casts = octofold.nn.cast_after_step(optimizer, model)
    >>> for batch in batches:
    ...     loss(model(batch)).backward()
    ...     optimizer.step()  # and the casts
    ...     optimizer.zero_grad()

    optimizer: one of torch.optim, or several that share the weights out. A step casts the weights
        that its optimizer has; others, frozen ones, keep the casts that are made now.
    model: a module with octofold.nn.Linear, MLP, NormLinear or Experts; its parameters stay the
        tensors that they are.

    The casts take 2 bytes for each element of a weight (rows and transpose, as the recipe wants
    them), for as long as they are held. Experts' are of all experts, not of those alone that have
    tokens.

    A weight that is written to otherwise: where torch counts the write, or the weight moves to
    other memory, an eager forward casts it as it is then, until the next step. What is not seen: a
    write past torch's counter (`weight.data`, NumPy, another library's kernels), and any write
    between two replays of a CUDA graph or two calls of a compiled function. The casts() of the
    handle renews them; loading a state_dict() does it by itself. A graph that was captured before
    this call holds the casts of its weights, and steps without those here.

    Weights are cast in each forward as before: with a parametrization; of torch.nn layers that do
    not know FP8.

    Returns a handle: casts() casts all weights again, now; remove() ends it.
    Raises InvalidArgumentError, with nothing changed: for weights that FSDP or tensor parallelism
    has spread over ranks, where what a layer multiplies with is gathered anew in each pass; for
    weights on meta; for casts that are held already; and for a model without such layers.
    """
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    for each in optimizers:
        if not isinstance(each, Optimizer):
            expected, got = "a torch.optim.Optimizer, or several", type(each).__qualname__
            raise invalid_argument(_NAME, "optimizer", expected, got)
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    wanted = list(_unique(_weights_of(model, "")))
    if not wanted:
        expected = "a module with FP8 layers, whose outputs are in FP8"
        raise invalid_argument(_NAME, "model", expected, "none")
    for name, weights, _ in wanted:
        for weight in weights:
            _require_whole(name, weight)
    return CastsAfterStep(optimizers, model, [(weights, recipe) for _, weights, recipe in wanted])


class CastsAfterStep:
    """The casts of a model's weights that cast_after_step() returns."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        model: Module,
        wanted: Sequence[tuple[Weights, Recipe]],
    ) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._held = [_Held(weights, recipe) for weights, recipe in wanted]
        for held in self._held:
            held.take_places()
        register: Any = model.register_load_state_dict_post_hook
        self._handles: list[Any] = [register(_Renewal(self.casts))]
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def casts(self) -> None:
        """Cast all weights as they are now, on their device's current stream."""
        _cast_all(self._held)

    def remove(self) -> None:
        """Give the casts up: each forward casts its weights again. A second time nothing."""
        for handle in self._handles:
            handle.remove()
        for held in self._held:
            held.leave_places()
        self._handles, self._held = [], []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        _cast_all([held for held in self._held if any(id(w) in own for w in held.weights)])


class _Held:
    """The casts of a layer's weight."""

    def __init__(self, weights: Weights, recipe: Recipe) -> None:
        self.weights, self.recipe = weights, recipe
        self.casts: WeightCasts = cast_weight(joined(weights), recipe, True, True)
        self._versions = tuple(map(Version.of, weights))
        self._jobs = self._make_jobs()

    def is_current(self) -> bool:
        """True if the weights are those that were cast, as far as torch counts writes to them."""
        return all(version.is_current() for version in self._versions)

    def mark_current(self) -> None:
        self._versions = tuple(map(Version.of, self.weights))

    def jobs(self) -> list[CastJob]:
        """Returns the jobs that make the casts of the weights as they are now: made anew where
        these have moved, or are copied to be one."""
        addresses = {weight.data_ptr() for weight in self.weights}
        if any(version.has_moved() for version in self._versions) or any(
            job.source.data_ptr() not in addresses for job in self._jobs
        ):
            self._jobs = self._make_jobs()
        return self._jobs

    def _make_jobs(self) -> list[CastJob]:
        output, grad_input = self.recipe.output, self.recipe.grad_input
        of_rows = None if output is None else output.b
        of_transpose = None if grad_input is None else grad_input.b
        rows, transposed = self.casts
        if len(self.weights) == 1 or not self._are_apart():
            weight = joined(self.weights)
            matrices = weight.shape[0] if weight.dim() == 3 else None
            source = walkable(weight.contiguous() if matrices is not None else weight)
            targets = _target(of_rows, rows), _target(of_transpose, transposed)
            return [CastJob(source, *targets, matrices=matrices)]
        jobs, begin = [], 0
        for weight in self.weights:
            end = begin + weight.shape[0]
            part = _target(of_rows, None if rows is None else rows[begin:end])
            across = None if transposed is None else _columns(transposed, begin, end)
            jobs.append(CastJob(walkable(weight.detach()), part, _target(of_transpose, across)))
            begin = end
        return jobs

    def _are_apart(self) -> bool:
        """True if each of several weights has scales of its own, and is cast where it lies."""
        scales = {cast.granularity for cast in self.casts if cast is not None}
        whole = all(weight.shape[0] % 128 == 0 for weight in self.weights[:-1])
        return whole and scales <= {"1x128", "128x128"}

    def take_places(self) -> None:
        for place, weight in enumerate(self.weights):
            setattr(weight, _ATTRIBUTE, (*getattr(weight, _ATTRIBUTE, ()), _Place(self, place)))

    def leave_places(self) -> None:
        for weight in self.weights:
            left = tuple(p for p in getattr(weight, _ATTRIBUTE, ()) if p.held is not self)
            if left:
                setattr(weight, _ATTRIBUTE, left)
            elif hasattr(weight, _ATTRIBUTE):
                delattr(weight, _ATTRIBUTE)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Files of whole models hold the parameters, whose attributes these are: not the casts."""
        return _nothing, ()


class _Place(NamedTuple):
    """The place of a weight among those of a cast."""

    held: _Held
    place: int


def _nothing() -> None:
    return None


class _Renewal:
    """The hook that a model calls when it has loaded a state_dict()."""

    def __init__(self, casts: Callable[[], None]) -> None:
        self._casts = casts

    def __call__(self, *_: Any) -> None:
        self._casts()

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        """A copy, or a file, of the model gets a hook that does nothing: its casts are not held."""
        return _Renewal, (_nothing,)


def step_casts(weights: Weights, recipe: Recipe) -> WeightCasts | None:
    """The casts that are held of a layer's weight, where it is what was cast; else None. A compiler
    does not look at how often a weight was written to, which would be another function each
    time."""
    for held, place in getattr(weights[0], _ATTRIBUTE, ()):
        if (
            held is not None
            and place == 0
            and len(held.weights) == len(weights)
            and (held.recipe is recipe or held.recipe == recipe)
            and _all_have_places(held, weights)
            and (_is_compiling() or held.is_current())
        ):
            casts: WeightCasts = held.casts
            return casts
    return None


def renew_casts(weights: Iterable[Tensor]) -> None:
    """Cast anew what is held of these weights, which were written to."""
    places = (place for weight in weights for place in getattr(weight, _ATTRIBUTE, ()))
    _cast_all(list({id(place.held): place.held for place in places}.values()))


def _all_have_places(held: _Held, weights: Weights) -> bool:
    """By what is on the weights: compilers know no tensor from another one."""
    for place in range(1, len(weights)):
        places = getattr(weights[place], _ATTRIBUTE, ())
        if not any(each.held is held and each.place == place for each in places):
            return False
    return True


def _cast_all(all_held: Sequence[_Held]) -> None:
    with torch.no_grad():
        cast_many([job for held in all_held for job in held.jobs()])
    for held in all_held:
        held.mark_current()


def _target(format: Format | None, out: ScaledTensor | None) -> Target | None:
    return None if format is None or out is None else Target(format, out=out)


def _columns(codes: ScaledTensor, begin: int, end: int) -> ScaledTensor:
    """Cuts columns out of codes, at the bounds of whole blocks of 128."""
    scale = codes.scale[:, begin // 128 : (end + 127) // 128]
    return ScaledTensor(codes.data[:, begin:end], scale, codes.granularity)


_Named: TypeAlias = tuple[str, Weights, Recipe]


def _weights_of(module: Module, name: str) -> Iterator[_Named]:
    """Yields what the layers of a module cast: for each its name, the weights and the recipe. A
    layer of layers may cast theirs together."""
    cast_weights = getattr(module, "cast_weights", None)
    own = None if cast_weights is None else cast_weights()
    if own is not None:
        for weights, recipe in own:
            if recipe.output is not None:
                yield name, weights, recipe
        return
    for child_name, child in module.named_children():
        yield from _weights_of(child, f"{name}.{child_name}" if name else child_name)


def _unique(found: Iterator[_Named]) -> Iterator[_Named]:
    """Without those of layers that share a weight, and its casts."""
    seen: list[tuple[tuple[int, ...], Recipe]] = []
    for name, weights, recipe in found:
        key = tuple(map(id, weights)), recipe
        if key not in seen:
            seen.append(key)
            yield name, weights, recipe


def _require_whole(name: str, weight: Tensor) -> None:
    expected = "weights that are whole in this process"
    if type(weight) is not Parameter or hasattr(weight, "device_mesh"):
        got = f"{name}, of {type(weight).__qualname__}: what is spread over ranks is gathered, or "
        got += "computed, anew in each pass, and cast there (gather_in_fp8() casts shards)"
        raise invalid_argument(_NAME, "model", expected, got)
    if weight.is_meta:
        raise invalid_argument(_NAME, "model", f"{expected}, with memory", f"{name} on meta")
    if getattr(weight, _ATTRIBUTE, ()):
        expected = "weights whose casts are not held yet: remove() of the earlier handle"
        raise invalid_argument(_NAME, "model", expected, name)
