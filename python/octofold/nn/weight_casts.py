"""The casts of a weight, kept until it changes."""

import weakref
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .casts import Casts, cast_weight, joined
from .delayed import WEIGHT, delayed_scale
from .recipes import Recipe

_Version: TypeAlias = tuple["weakref.ref[Tensor]", int, int]
_Entry: TypeAlias = tuple[tuple[_Version, ...], Casts]

_is_capturing: Final = torch.cuda.is_current_stream_capturing
_is_compiling: Final = torch.compiler.is_compiling


class WeightCasts:
    """Of one layer, for one version of its weight: gradient accumulation casts it once.

    A version is a parameter, its version counter and its memory. Fused optimizers write past the
    counter; a hook on every optimizer's step moves it. Kept is nothing
    - of what is no parameter (it was computed, by a parametrization for example), or was made in
      inference mode, where nothing is counted;
    - while a CUDA graph is captured: each replay casts the weight as it is then, and what was kept
      before would not outlive the next version, as the graph does.

    Copies and files of it are empty.
    """

    __slots__ = ("_entry",)

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def __reduce__(self) -> tuple[type["WeightCasts"], tuple[()]]:
        return WeightCasts, ()

    def clear(self) -> None:
        """Forget them: the next call casts."""
        self._entry = None

    def of(
        self,
        weights: tuple[Tensor, ...],
        recipe: Recipe,
        amax_history: Tensor | None,
        transposed: bool,
        remember: bool,
        sharded: bool = False,
    ) -> Casts:
        """The casts, the transposed one if wanted (or there already).

        weights: one, or several that are one below the other in a product.
        amax_history: the layer's [3, history], under delayed scaling; `remember` as there.
        sharded: by FSDP, which fills the same memory anew in each pass.
        """
        if sharded or _is_compiling():
            # A transposed cast kept for backward would be a whole weight: cast there what FSDP
            # gathers anew.
            return _cast(weights, recipe, amax_history, transposed and not sharded, remember)
        for weight in weights:
            if (
                type(weight) is not torch.nn.Parameter
                or weight.is_inference()
                or _is_captured(weight)
            ):
                return _cast(weights, recipe, amax_history, transposed, remember)
        casts: Casts | None = None
        if self._entry is not None:
            versions, casts = self._entry
            for weight, (parameter, version, address) in zip(weights, versions, strict=True):
                if (
                    version != weight._version
                    or parameter() is not weight
                    or address != weight.data_ptr()
                ):
                    casts = None
            if casts is not None and (
                not transposed or casts[1] is not None or recipe.grad_input is None
            ):
                return casts
        with torch.inference_mode(False), torch.no_grad():  # what is kept may serve backward later
            if casts is None:
                casts = _cast(weights, recipe, amax_history, transposed, remember)
            else:
                casts = _with_transposed(casts, joined(weights), recipe)
        versions = tuple((weakref.ref(w), w._version, w.data_ptr()) for w in weights)
        self._entry = versions, casts
        return casts


def _is_captured(weight: Tensor) -> bool:
    return weight.is_cuda and _is_capturing()


def _cast(
    weights: tuple[Tensor, ...],
    recipe: Recipe,
    amax_history: Tensor | None,
    transposed: bool,
    remember: bool,
) -> Casts:
    weight = joined(weights)
    scale = weight_scale(weight, recipe, amax_history, remember)
    return cast_weight(weight, recipe, True, transposed, scale)


def _with_transposed(casts: Casts, weight: Tensor, recipe: Recipe) -> Casts:
    rows = casts[0]
    scale = rows.scale if recipe.delayed is not None and rows is not None else None
    return rows, cast_weight(weight, recipe, False, True, scale)[1]


def weight_scale(
    weight: Tensor, recipe: Recipe, amax_history: Tensor | None, remember: bool
) -> Tensor | None:
    """A layer's static scale of its weight, if its recipe is a delayed one."""
    if recipe.delayed is None or amax_history is None:
        return None
    history = amax_history[WEIGHT]
    return delayed_scale(weight, history, recipe.weight_dtype, recipe.delayed, remember)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count_step(optimizer: Optimizer, arguments: object, options: object) -> None:
    """torch's fused optimizers, and others' kernels, write parameters without counting it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.is_inference():
                torch.autograd.graph.increment_version(parameter)


register_optimizer_step_post_hook(_count_step)
