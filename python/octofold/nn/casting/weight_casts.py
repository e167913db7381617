"""The casts of weights: made in each forward, kept where keep_casts() asks for it, and held from
step to step where cast_after_step() does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.errors import InvalidArgumentError, invalid_argument
from ..._core.recipe import Recipe
from .casts import WeightCasts, cast_weight, joined
from .fp8_weight import Fp8Weight
from .step_casts import Version, step_casts

_NAME: Final = "octofold.nn.keep_casts"

_is_capturing: Final = torch.cuda.is_current_stream_capturing
_is_compiling: Final = torch.compiler.is_compiling


@contextmanager
def keep_casts(model: Module) -> Iterator[None]:
    """A context in which a model's weights are cast once, and not in each forward.

    >>> with octofold.nn.keep_casts(model):
    ...     for batch in micro_batches:
    ...         loss(model(batch)).backward()
    >>> optimizer.step()

    It is for several forwards with the same weights: gradient accumulation, activation
    checkpointing, evaluation. The weights must not be written to meanwhile. A write that torch
    counts and a move to other memory are errors in the next forward; a write past torch's counter
    (`weight.data`, NumPy, a fused optimizer's step) is not seen.

    model: a module; its parameters are those that it has as the context is entered.

    The casts take 2 bytes for each element of a weight in training, 1 in evaluation, until the
    context is left. Some weights are still cast in each forward: under torch.compile, while a CUDA
    graph is captured, under FSDP, and if they are no parameter of the model, as with a
    parametrization.
    Raises InvalidArgumentError for what is not a module.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    kept = _Kept(model)
    _ENTERED.append(kept)
    try:
        yield
    finally:
        _ENTERED.remove(kept)


def weight_casts(
    weights: tuple[Tensor, ...],
    recipe: Recipe,
    transposed: bool,
    sharded: bool = False,
) -> WeightCasts:
    """The casts of a layer's weight as it is now, the transposed one if wanted.

    weights: one, or several that are one below the other in a product.
    sharded: by FSDP, which fills the same memory anew in each pass. A transposed cast kept for
        backward would be a whole weight: what FSDP gathers for backward is cast there.
    """
    held = None if sharded else held_casts(weights, recipe, transposed)
    return held or cast_weight(joined(weights), recipe, True, transposed and not sharded)


def casts_for_call(
    weights: tuple[Tensor, ...], recipe: Recipe, transposed: bool, sharded: bool
) -> WeightCasts | None:
    """The same for a layer whose own call casts what nobody holds: None of that."""
    for weight in weights:
        if sharded or isinstance(weight, Fp8Weight):
            return weight_casts(weights, recipe, transposed, sharded)
    return held_casts(weights, recipe, transposed)


def held_casts(weights: tuple[Tensor, ...], recipe: Recipe, transposed: bool) -> WeightCasts | None:
    """The same, where somebody holds them: cast_after_step(), keep_casts()."""
    held = step_casts(weights, recipe)
    if held is not None:
        return held if transposed else (held[0], None)
    if not _is_compiling() and _ENTERED and not (weights[0].is_cuda and _is_capturing()):
        for kept in _ENTERED:
            if kept.holds(weights):
                return kept.casts(weights, recipe, transposed)
    return None


_Key: TypeAlias = tuple[tuple[int, ...], int]


class _Kept:
    """The casts of a model's weights in one keep_casts()."""

    def __init__(self, model: Module) -> None:
        # A parameter that is made in inference mode has no version.
        self._versions = {
            id(parameter): Version.of(parameter)
            for parameter in model.parameters()
            if type(parameter) is torch.nn.Parameter and not parameter.is_inference()
        }
        self._casts: dict[_Key, tuple[Recipe, WeightCasts]] = {}

    def holds(self, weights: tuple[Tensor, ...]) -> bool:
        return all(id(weight) in self._versions for weight in weights)

    def casts(self, weights: tuple[Tensor, ...], recipe: Recipe, transposed: bool) -> WeightCasts:
        """The casts for weight_casts(). Raises InvalidArgumentError for changed weights."""
        if not all(self._versions[id(weight)].is_current() for weight in weights):
            raise _changed(weights)
        # By the objects themselves, which are held: to hash a recipe takes longer than a forward.
        key = tuple(map(id, weights)), id(recipe)
        *_, casts = self._casts.get(key, (None,))
        lacks_transposed = transposed and recipe.grad_input is not None
        if casts is None or (lacks_transposed and casts[1] is None):
            # Casts that are kept may serve backward later, so inference mode is off.
            with torch.inference_mode(False), torch.no_grad():
                weight = joined(weights)
                if casts is None:
                    casts = cast_weight(weight, recipe, True, transposed)
                else:
                    casts = casts[0], cast_weight(weight, recipe, False, True)[1]
            self._casts[key] = recipe, casts
        return casts


_ENTERED: Final[list[_Kept]] = []


def _changed(weights: tuple[Tensor, ...]) -> InvalidArgumentError:
    shapes = " and ".join(str(list(weight.shape)) for weight in weights)
    expected = "weights that stay as they are until the context is left"
    return invalid_argument(_NAME, "model", expected, f"a weight {shapes} that was written to")
