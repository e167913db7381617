"""Experts that are spread over the ranks of a group, as a function with a gradient."""

from typing import Any

import torch
from torch import Tensor

from ..._core.errors import InvalidArgumentError, invalid_argument
from ..._core.recipe import Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._ranks import require_agreement
from ...nn.autograd.blocks import require_activation
from ...nn.autograd.experts import (
    expert_recipe_of,
    layer_of_experts,
    require_projections,
    require_routed,
    require_same_device,
)
from ...nn.autograd.functions import result_dtype
from ...nn.autograd.layer import Chain, Layer
from ...nn.casting.casts import as_operand, walkable
from .function import Inputs, run_over_ranks
from .plan import NAME, Exchange, exchange_of


def experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: Tensor | ScaledTensor,
    w2: Tensor | ScaledTensor,
    group: Any = None,
    activation: str = "swiglu",
    recipe: Recipe | str = "blockwise",
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    *,
    wire: str = "fp8",
    capacity: int | None = None,
    local_rows: int | None = None,
    combine_dtype: torch.dtype | None = None,
    halves: int = 1,
    dropped: Tensor | None = None,
) -> Tensor:
    """octofold.experts() of experts that are spread over the ranks of a group: rank r of n has
    those from r · E / n on. Each rank calls it with tokens of its own, any number of them.

    x, topk_ids, topk_weights: as in octofold.experts(), of this rank's tokens; ids are of all E
        experts.
    w13, w2, b13, b2: those of this rank's experts, [E / n, ...].
    group: a torch.distributed.ProcessGroup, a DeviceMesh of one dimension, or None for all
        processes.
    activation, recipe: as in octofold.experts(). One scale of all tokens ("tensor") is of one
        rank's tokens.
    wire: "fp8": tokens are cast where they are, and travel as codes with their scales; so do their
        gradients, which the products of backward take as they come. What the weights' gradients
        take is cast again from their values. "input": x and dy travel in their own dtype.
    capacity: None: as many rows travel as there are; the host waits for the device once. A number:
        so many rows travel from each rank to each in each part of the batch; the host waits for
        nothing, and a CUDA graph can hold it. Rows that find no room are left out, as if their ids
        were -1: on the CPU that is InvalidArgumentError on all ranks; on a GPU they are counted.
    local_rows: beside a capacity: for how many choices of this rank's experts there is room in
        memory; None: for capacity · n · k. What finds no room is left out, likewise.
    combine_dtype: in which results and gradients travel back to be summed over ranks; None: that of
        the result, and of x.
    halves: 2 cuts the batch in two; the exchange of one half goes beside the products of the other.
    dropped: int64 [1] on the device of x; the number of rows left out is added to it.

    Returns [..., hidden], as octofold.experts(). With the recipes "blockwise" and "rowwise" a token
    whose experts are all on one rank has the bits of one process, and otherwise sums over ranks
    that are rounded once for each rank. docs/distributed/experts.md says what travels and is kept.
    Raises InvalidArgumentError on every rank where arguments do not fit, or ranks disagree about
    them, and UnavailableError where a rank does not come within the group's time-out.
    """
    exchange = exchange_of(
        NAME,
        group,
        wire=wire,
        capacity=capacity,
        local_rows=local_rows,
        combine_dtype=combine_dtype,
        halves=halves,
    )
    recipe = expert_recipe_of(NAME, recipe)
    w13, w2 = as_operand(w13), as_operand(w2)
    weights = (w13, w2, b13, b2)
    require_fitting_ranks(x, topk_ids, topk_weights, weights, activation, recipe, exchange, dropped)
    layers = layer_of_experts(w13, b13), layer_of_experts(w2, b2)
    chain = Chain(NAME, recipe, activation=activation)
    return run_experts(x, topk_ids, topk_weights, layers, chain, exchange, dropped)


def run_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    layers: tuple[Layer, Layer],
    chain: Chain,
    exchange: Exchange,
    dropped: Tensor | None,
) -> Tensor:
    """experts() of arguments that fit, by require_fitting_ranks()."""
    of_x = torch.is_grad_enabled() and x.requires_grad
    both = of_x or (torch.is_grad_enabled() and layers[0].needs_gradient())
    first, second = layers
    layers = first.with_casts(chain.recipe, of_x), second.with_casts(chain.recipe, both)
    rows = walkable(x).reshape(-1, x.shape[-1])
    ids = topk_ids.reshape(-1, topk_ids.shape[-1])
    weights = topk_weights.to(torch.float32).reshape(ids.shape)
    dtype = result_dtype(x)
    inputs = Inputs(rows, weights, ids, (), layers, chain, dtype, exchange)
    return run_over_ranks(inputs, dropped).view(x.shape)


Weights = tuple[Tensor | ScaledTensor, Tensor | ScaledTensor, Tensor | None, Tensor | None]


def require_fitting_ranks(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    weights: Weights,
    activation: str,
    recipe: Recipe,
    exchange: Exchange,
    dropped: Tensor | None,
    layer: int | None = None,
) -> None:
    """Checks that the arguments fit together on each rank, and are about the same layer on all. All
    ranks raise what is wrong on one of them."""
    wrong: InvalidArgumentError | None = None
    try:
        require_activation(NAME, activation)
        require_projections(NAME, *weights, activation, recipe)
        require_same_device(NAME, x, weights[0])
        require_routed(NAME, x, topk_ids, topk_weights, weights[0].shape[2])
        _require_counter(x, dropped)
    except InvalidArgumentError as error:
        wrong = error
    facts = {
        "arguments": "fitting ones" if wrong is None else str(wrong),
        **_facts(x, topk_ids, topk_weights, weights),
        "layer": f"{layer} of the group" if layer else "none",
        "activation": activation,
        "recipe": recipe,
        **exchange.facts(),
    }
    require_agreement(NAME, exchange.ranks, **facts)
    if wrong is not None:
        raise wrong


def _facts(
    x: Tensor, topk_ids: Tensor, topk_weights: Tensor, weights: Weights
) -> dict[str, object]:
    """The facts that the messages of this layer depend on."""
    if not all(isinstance(t, Tensor) and t.dim() > 0 for t in (x, topk_ids, topk_weights)):
        return {}
    grad = torch.is_grad_enabled()
    tensors = {"x": x, "topk_weights": topk_weights}
    tensors |= dict(zip(("w13", "w2", "b13", "b2"), weights, strict=True))  # type: ignore[arg-type]
    wanted = [
        name for name, t in tensors.items() if grad and isinstance(t, Tensor) and t.requires_grad
    ]
    return {
        "x": f"{x.dtype} [tokens, {x.shape[-1]}]",
        "topk_ids": f"[tokens, {topk_ids.shape[-1]}]",
        "w13": list(getattr(weights[0], "shape", ())),
        "w2": list(getattr(weights[1], "shape", ())),
        "dtype": result_dtype(x),
        "requires_grad": ", ".join(wanted) or "nothing",
    }


def _require_counter(x: Tensor, dropped: Tensor | None) -> None:
    if dropped is None:
        return
    if dropped.dtype != torch.int64 or dropped.numel() != 1 or dropped.device != x.device:
        got = f"{dropped.dtype} {list(dropped.shape)} on {dropped.device}"
        raise invalid_argument(NAME, "dropped", f"int64 [1] on {x.device}", got)
