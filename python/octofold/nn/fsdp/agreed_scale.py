"""The scales of weights of which each rank has a shard, and which have one scale each.

Ranks agree on the largest magnitudes as the model's forward begins, for all layers at once: one
all-reduce of a number for each. Gathers find the result on the layers until that forward ends, and
no longer, as weights may change then. Each gather that finds none asks for its own: of a layer that
runs without its model, before it, or in backward, and of each layer in the first forward, when it
is not known yet who the ranks are. FSDP's gathers run on streams of its own, outside backward and
in it.
"""

from collections import defaultdict
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Module

from ..._core.recipe import Recipe
from ..._ranks.ranks import Ranks, ranks_of, require_agreement
from ..._ranks.wire import largest
from ..casting.casts import WEIGHT, delayed_scale

_T = TypeVar("_T")


class StreamValue(Generic[_T]):
    """A value that was made on the current stream, for others too: FSDP asks for what is to be
    gathered on streams that do not wait for a forward's pre-hooks, nor for each other.

    value: of these tensors.
    """

    def __init__(self, value: _T, *tensors: Tensor | None) -> None:
        self._value = value
        self._tensors: Final = [tensor for tensor in tensors if tensor is not None]
        on_gpu = self._tensors[0].is_cuda
        self._ready = torch.cuda.current_stream().record_event() if on_gpu else None

    def on_current_stream(self) -> _T:
        """It, for the current stream, which waits until it is there; its memory is kept as long as
        this stream needs it."""
        if self._ready is not None:
            stream = torch.cuda.current_stream(self._tensors[0].device)
            stream.wait_event(self._ready)
            for tensor in self._tensors:
                tensor.record_stream(stream)
        return self._value


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


_OPERATION: Final = "octofold.nn.convert(fsdp_fp8=True)"
_HELD: Final = "_shard_of_weight"

_is_compiling: Final = torch.compiler.is_compiling


class Agreed(NamedTuple):
    """On a weight's scale.

    amax: the largest magnitude [1] of the whole weight, float32, in the dtype in which it is cast.
    scale: a static scale [1] for its casts, under delayed scaling.
    """

    amax: Tensor
    scale: Tensor | None


class _Held:
    """A layer's record of who has a shard of its weight, and of what they have agreed on."""

    def __init__(
        self, module: Any, place: str, weight: Tensor, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        self.module, self.place, self.dtype, self.ranks = module, place, dtype, ranks
        self.weight = ref(weight)  # with offloading it is there for one gather
        self.agreed: StreamValue[Agreed] | None = None
        """In a forward of the model."""
        self.is_ahead = False
        """True if the weight was gathered for a forward of the model before that began."""


def agreed_scale(
    module: Module, place: str, weight: Tensor, dtype: torch.dtype, mesh: Any
) -> Agreed:
    """For the weight of which a layer has this shard, and that is cast from this dtype. place: of
    the layer in the model, for messages."""
    held: _Held | None = module.__dict__.get(_HELD)
    if held is None or held.weight() is not weight or held.dtype != dtype:
        held = _Held(module, place, weight, dtype, ranks_of(_OPERATION, "mesh", mesh))
        module.__dict__[_HELD] = held
    if held.agreed is not None:
        return held.agreed.on_current_stream()
    held.is_ahead = not in_backward()
    return _agree([held], [weight])[0].on_current_stream()


def agree_before_forward(model: Module, arguments: Any) -> None:
    """A forward pre-hook of the model: all of its layers at once. fully_shard() comes later, and
    puts a hook that gathers before this one, which goes back to where it was."""
    hooks: Any = model._forward_pre_hooks
    if next(iter(hooks.values())) is not agree_before_forward and not _is_compiling():
        own = next(key for key, hook in hooks.items() if hook is agree_before_forward)
        hooks.move_to_end(own, last=False)
    if in_backward():  # forward again, for activations: backward has its codes
        return
    together: defaultdict[Ranks, tuple[list[_Held], list[Tensor]]]
    together = defaultdict(lambda: ([], []))
    for held in _held_in(model):
        weight = held.weight()
        if weight is not None and not held.is_ahead:
            several, weights = together[held.ranks]
            several.append(held)
            weights.append(weight)
    for several, weights in together.values():
        for held, agreed in zip(several, _agree(several, weights), strict=True):
            held.agreed = agreed


def forget_after_forward(model: Module, arguments: Any, result: Any) -> None:
    """A forward hook of the model, also of a forward that failed."""
    for held in _held_in(model):
        held.agreed, held.is_ahead = None, False


def _held_in(model: Module) -> list[_Held]:
    return [m.__dict__[_HELD] for m in model.modules() if _HELD in m.__dict__]


@torch.no_grad()
def _agree(several: list[_Held], weights: list[Tensor]) -> list[StreamValue[Agreed]]:
    """One all-reduce of the group that all of them have."""
    ranks = several[0].ranks
    words = ", ".join(f"{held.place} from {held.dtype}" for held in several)
    require_agreement(_OPERATION, ranks, weights=words)
    found = torch._foreach_norm(weights, torch.inf)
    own = [amax.to(held.dtype) for amax, held in zip(found, several, strict=True)]
    amaxes = torch.split(largest(_OPERATION, torch.stack(own).float(), ranks), 1)
    scales = [_delayed_scale(held.module, amax) for held, amax in zip(several, amaxes, strict=True)]
    return [StreamValue(Agreed(*both), *both) for both in zip(amaxes, scales, strict=True)]


def _delayed_scale(module: Any, amax: Tensor) -> Tensor | None:
    """The static scale of a layer's weight, under delayed scaling."""
    recipe: Recipe = module.recipe
    if recipe.delayed is None:
        return None
    assert recipe.output is not None
    history, dtype = module.amax_history[WEIGHT], recipe.output.b.dtype
    return delayed_scale(amax, history, dtype, recipe.delayed, module.training)
