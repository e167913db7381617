"""The scales of weights of which each rank has a shard, and which have one scale each.

Ranks agree on the largest magnitudes as the model's forward begins, for all layers at once: one
all-reduce of a number for each. Gathers of the same step, in backward and in activation
checkpointing, find the result on the layer, and the last of them takes it away. A layer that runs
without its model, and each layer in the first forward, when it is not known yet who the ranks are,
ask for their own.
"""

from collections import defaultdict
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.recipe import Recipe
from ...nn.recipes.history import WEIGHT, delayed_scale
from ..ranks import Ranks, ranks_of
from ..wire import largest

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
        self.module, self.weight, self.dtype, self.ranks = module, weight, dtype, ranks
        self.agreed: Agreed | None = None


def agreed_scale(module: Module, weight: Tensor, dtype: torch.dtype, mesh: Any) -> Agreed:
    """For the weight of which a layer has this shard, and that is cast from this dtype."""
    held: _Held | None = module.__dict__.get(_HELD)
    if held is None or held.weight is not weight or held.dtype != dtype:
        held = _Held(module, weight, dtype, ranks_of(_OPERATION, "mesh", mesh))
        module.__dict__[_HELD] = held
    if held.agreed is None:
        _agree([held], weight.device)
    agreed = held.agreed
    assert agreed is not None
    if _in_backward():  # the last gather of a step
        held.agreed = None
    return agreed


def agree_before_forward(model: Module, arguments: Any) -> None:
    """A forward pre-hook of the model: all of its layers at once."""
    together: defaultdict[tuple[Ranks, torch.device], list[_Held]] = defaultdict(list)
    for held in _held_in(model):
        together[held.ranks, held.weight.device].append(held)
    for (_, device), several in together.items():
        _agree(several, device)


def forget_after_evaluation(model: Module, arguments: Any, result: Any) -> None:
    """A forward hook of the model: no backward will come for what was agreed on."""
    if not torch.is_grad_enabled():
        for held in _held_in(model):
            held.agreed = None


def _held_in(model: Module) -> list[_Held]:
    return [m.__dict__[_HELD] for m in model.modules() if _HELD in m.__dict__]


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _agree(several: list[_Held], device: torch.device) -> None:
    """One all-reduce of the group that all of them have."""
    with torch.no_grad():
        found = torch._foreach_norm([held.weight for held in several], torch.inf)
        own = [amax.to(held.dtype) for amax, held in zip(found, several, strict=True)]
        amaxes = largest(_OPERATION, torch.stack(own).float(), several[0].ranks)
        for held, amax in zip(several, torch.split(amaxes, 1), strict=True):
            recipe: Recipe = held.module.recipe
            scale = None
            if recipe.delayed is not None:
                assert recipe.output is not None
                history, dtype = held.module.amax_history[WEIGHT], recipe.output.b.dtype
                remember = held.module.training
                scale = delayed_scale(amax, history, dtype, recipe.delayed, remember)
            held.agreed = Agreed(amax, scale)
