"""The scales of weights of which each rank has a shard, and which have one scale each.

Ranks agree on the largest magnitudes as the model's forward begins, for all layers at once: one
all-reduce of a number for each. The gather that casts finds the result on the layer, and takes it
away if backward will find its codes. A layer that runs without its model, and each layer in the
first forward, when it is not known yet who the ranks are, ask for their own.
"""

from collections import defaultdict
from typing import Any, Final, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.recipe import Recipe
from ..._ranks.ranks import Ranks, ranks_of
from ..._ranks.wire import largest
from ..recipes.history import WEIGHT, delayed_scale
from .gathers import AnyStream, in_backward

_OPERATION: Final = "octofold.nn.convert(fsdp_fp8=True)"
_HELD: Final = "_shard_of_weight"


class Agreed(NamedTuple):
    """On a weight's scale.

    amax: the largest magnitude [1] of the whole weight, float32, in the dtype in which it is cast.
    scale: a static scale [1] for its casts, under delayed scaling.
    """

    amax: Tensor
    scale: Tensor | None


class _Held:
    """What a layer holds: who has a shard of its weight, and what they have agreed on."""

    def __init__(self, module: Any, weight: Tensor, dtype: torch.dtype, ranks: Ranks) -> None:
        self.module, self.dtype, self.ranks = module, dtype, ranks
        self.weight = ref(weight)  # with offloading it is there for one gather
        self.agreed: AnyStream[Agreed] | None = None


def agreed_scale(module: Module, weight: Tensor, dtype: torch.dtype, mesh: Any) -> Agreed:
    """For the weight of which a layer has this shard, and that is cast from this dtype."""
    held: _Held | None = module.__dict__.get(_HELD)
    if held is None or held.weight() is not weight or held.dtype != dtype:
        held = _Held(module, weight, dtype, ranks_of(_OPERATION, "mesh", mesh))
        module.__dict__[_HELD] = held
    if held.agreed is None:
        _agree([held], [weight])
    agreed = held.agreed
    assert agreed is not None
    if in_backward() or module.training:  # the last gather of a step that casts
        held.agreed = None
    return agreed.here()


def agree_before_forward(model: Module, arguments: Any) -> None:
    """A forward pre-hook of the model: all of its layers at once."""
    together: defaultdict[Ranks, tuple[list[_Held], list[Tensor]]]
    together = defaultdict(lambda: ([], []))
    for held in _held_in(model):
        weight = held.weight()
        if weight is not None:
            several, weights = together[held.ranks]
            several.append(held)
            weights.append(weight)
    for several, weights in together.values():
        _agree(several, weights)


def forget_after_evaluation(model: Module, arguments: Any, result: Any) -> None:
    """A forward hook of the model: no backward will come for what was agreed on."""
    if not torch.is_grad_enabled():
        for held in _held_in(model):
            held.agreed = None


def _held_in(model: Module) -> list[_Held]:
    return [m.__dict__[_HELD] for m in model.modules() if _HELD in m.__dict__]


@torch.no_grad()
def _agree(several: list[_Held], weights: list[Tensor]) -> None:
    """One all-reduce of the group that all of them have."""
    found = torch._foreach_norm(weights, torch.inf)
    own = [amax.to(held.dtype) for amax, held in zip(found, several, strict=True)]
    amaxes = torch.split(largest(_OPERATION, torch.stack(own).float(), several[0].ranks), 1)
    scales = [_delayed_scale(held.module, amax) for held, amax in zip(several, amaxes, strict=True)]
    for held, amax, scale in zip(several, amaxes, scales, strict=True):
        held.agreed = AnyStream(Agreed(amax, scale), amax, scale)


def _delayed_scale(module: Any, amax: Tensor) -> Tensor | None:
    """The static scale of a layer's weight, under delayed scaling."""
    recipe: Recipe = module.recipe
    if recipe.delayed is None:
        return None
    assert recipe.output is not None
    history, dtype = module.amax_history[WEIGHT], recipe.output.b.dtype
    return delayed_scale(amax, history, dtype, recipe.delayed, module.training)
