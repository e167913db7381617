"""Steps of expert layers with few tokens, where casts of weights weigh most: who makes them, how
often; and what forward keeps for backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import octofold
import octofold.nn
import torch
from octofold import ops
from octofold._timing import Call
from octofold.nn.casting.casts import cast_weight
from octofold.nn.recipes import NAMED
from torch import Tensor

from .cases import Inputs
from .layers import COMPILED, GROUPED, Forward, compiled, plain
from .layers import grouped_products as torch_layer

MICRO_BATCHES = 4


@dataclass
class Step:
    """Forward and backward, of so many micro-batches, and what follows once."""

    forward: Forward
    weights: Sequence[Tensor]
    given: Inputs
    micro_batches: int = 1
    after: Callable[[], None] | None = None

    def __call__(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output and the gradients of the last one: of x, the routing weights, w13 and w2."""
        given = self.given
        with torch.enable_grad():
            for _ in range(self.micro_batches):
                y = self.forward(given)
                leaves = (given.x, given.weights, *self.weights)
                gradients = torch.autograd.grad(y, leaves, given.dy)
        if self.after is not None:
            self.after()
        return y, gradients


@dataclass(frozen=True)
class Way:
    """How a layer is stepped."""

    name: str
    make: Callable[[Inputs], Step]
    is_ours: bool = False
    micro_batches: int = 1


def by_torch(build, given: Inputs, micro_batches: int = 1) -> Step:
    return Step(*build(given), given, micro_batches)


def module_of(given: Inputs, recipe: str) -> octofold.nn.Experts:
    return octofold.nn.Experts.from_weights(given.w13, given.w2, recipe=recipe)


def forward_of(module: octofold.nn.Experts) -> tuple[Forward, Sequence[Tensor]]:
    def forward(given: Inputs) -> Tensor:
        result: Tensor = module(given.x, given.ids, given.weights)
        return result

    return forward, (module.gate_up_proj, module.down_proj)


def casting(recipe: str, given: Inputs, micro_batches: int = 1) -> Step:
    """Each forward casts the weights of the experts that have tokens."""
    return Step(*forward_of(module_of(given, recipe)), given, micro_batches)


def held(recipe: str, casts: bool, given: Inputs, micro_batches: int = 1) -> Step:
    """By cast_after_step(). casts: with what a step of the optimizer adds."""
    module = module_of(given, recipe)
    optimizer = torch.optim.SGD(module.parameters(), 0.0)
    handle = octofold.nn.cast_after_step(optimizer, module)
    after = handle.casts if casts else None
    return Step(*forward_of(module), given, micro_batches, after)


def ways(recipe: str, peers: bool) -> list[Way]:
    name, several = f"octofold {recipe}", f"{MICRO_BATCHES} micro-batches"
    found = []
    if peers:
        found = [
            Way(GROUPED, partial(by_torch, plain(torch_layer))),
            Way(COMPILED, partial(by_torch, compiled)),
        ]
    found += [
        Way(f"{name}, casts in it", partial(casting, recipe), True),
        Way(f"{name}, casts held", partial(held, recipe, False), True),
        Way(f"{name}, casts behind it", partial(held, recipe, True), True),
    ]
    if peers:
        make = partial(by_torch, plain(torch_layer), micro_batches=MICRO_BATCHES)
        found.append(Way(f"{GROUPED}, {several}", make, micro_batches=MICRO_BATCHES))
    for text, make in (("casts in each", casting), ("casts once", held)):
        options = (recipe,) if make is casting else (recipe, True)
        build = partial(make, *options, micro_batches=MICRO_BATCHES)
        found.append(Way(f"{name}, {several}, {text}", build, True, MICRO_BATCHES))
    return found


def casts_alone(given: Inputs, recipe: str) -> dict[str, Call]:
    """Casts of both weights both ways: of all experts, of those with tokens, and by one launch."""
    chosen = NAMED[recipe]
    weights = given.w13.detach(), given.w2.detach()
    used = ops.sort_by_expert(given.ids, len(given.w13)).offsets
    module = module_of(given, recipe)
    handle = octofold.nn.cast_after_step(torch.optim.SGD(module.parameters(), 0.0), module)

    def each(used: Tensor | None) -> None:
        for weight in weights:
            cast_weight(weight, chosen, True, True, used=used)

    return {
        "casts of all experts": partial(each, None),
        "casts of experts with tokens": partial(each, used),
        "casts by one launch": handle.casts,
    }


def bytes_kept(step: Step) -> int:
    """Bytes that forward keeps for backward, beside its inputs and the weights: memory that tensors
    saved for it hold, each once. Casts that are held are among it."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    given = step.given
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = step.forward(given)
    known = (given.x, given.dy, given.w13, given.w2, given.logits, given.ids, given.weights)
    for tensor in (*known, *step.weights, y):
        seen.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(seen.values())
