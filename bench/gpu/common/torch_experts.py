"""Experts that are spread over ranks, in BF16, by what torch has: the scheme of torchtitan.

    home                    the wire            the experts' rank

    rows of x, one for      exchange of the     rows by expert, whichever rank they are from
    each choice, sorted     chosen rows         grouped product, activation, grouped product
    by expert
    weighted sum of the     exchange back       rows as they came
    k rows of a token

A token goes once for each of its choices. The ranks tell each other first how many rows there are
for each expert, and the host waits for that. Rows are taken by permutations whose inverse is at
hand, so that no gradient is added up by atomics.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from common.grouped_rows import grouped_mm


def activated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def weighted_by_products(rows: Tensor, weights: Tensor) -> Tensor:
    """Weights rows [tokens, k, hidden] and sums over k, without a product of each row in memory."""
    return torch.bmm(weights.to(rows.dtype).unsqueeze(1), rows).squeeze(1)


def weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """The same for a compiler, which fuses it."""
    return (rows * weights.unsqueeze(-1)).sum(dim=1).to(rows.dtype)


def summed(rows: Tensor, places: Tensor, k: int) -> Tensor:
    """[tokens, hidden]: of the k rows that each token has at its places."""
    return rows.index_select(0, places).unflatten(0, (-1, k)).sum(dim=1)


class Pieces(NamedTuple):
    """The functions between the exchanges and the products."""

    activated: Callable[[Tensor], Tensor] = activated
    weighted: Callable[[Tensor, Tensor], Tensor] = weighted_by_products
    summed: Callable[[Tensor, Tensor, int], Tensor] = summed

    @staticmethod
    def compiled() -> "Pieces":
        """By torch.compile, which takes sizes for dynamic once they have changed."""
        made = (torch.compile(piece) for piece in (activated, weighted, summed))
        return Pieces(*made)


class ExpertsOverRanks:
    """The experts of a layer: rank r of n has those from r · E / n on."""

    def __init__(self, pieces: Pieces | None = None, group: Any = None) -> None:
        self._pieces, self._group = pieces or Pieces(), group

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        """x [tokens, hidden], ids and weights [tokens, k] of this rank's tokens; w13
        [E / n, 2 · inner, hidden] and w2 [E / n, hidden, inner] of its experts."""
        k, pieces, group = ids.shape[1], self._pieces, self._group
        choices, order = ids.flatten().sort(stable=True)
        places = inverse_of(order)
        counts, leaving = self._counts(choices, len(w13))
        splits = on_host(torch.stack((leaving.sum(1), counts.sum(1))))
        rows = _RowsOfChoices.apply(x, order // k, places, k, pieces.summed)
        to_ranks, from_ranks = splits()
        rows = _Exchanged.apply(rows, from_ranks, to_ranks, group)
        by_expert = expert_major(counts, len(rows))
        as_came = inverse_of(by_expert)
        rows = _Permuted.apply(rows, by_expert, as_came)
        ends = counts.sum(0).cumsum(0).int()
        gate_up = grouped_mm(rows, w13.transpose(-2, -1), ends)
        rows = grouped_mm(pieces.activated(gate_up), w2.transpose(-2, -1), ends)
        rows = _Permuted.apply(rows, as_came, by_expert)
        rows = _Exchanged.apply(rows, to_ranks, from_ranks, group)
        rows = _Permuted.apply(rows, places, order)
        return pieces.weighted(rows.unflatten(0, (-1, k)), weights)

    def _counts(self, choices: Tensor, own: int) -> tuple[Tensor, Tensor]:
        """[ranks, own experts]: rows that come from each rank, and that go to each; of choices that
        are sorted."""
        experts = dist.get_world_size(self._group) * own
        numbers = torch.arange(experts, dtype=choices.dtype, device=choices.device)
        ends = torch.searchsorted(choices, numbers, right=True)
        leaving = torch.cat((ends[:1], ends.diff()))
        counts = torch.empty_like(leaving)
        dist.all_to_all_single(counts, leaving, group=self._group)
        return counts.view(-1, own), leaving.view(-1, own)


def on_host(numbers: Tensor) -> Callable[[], list[list[int]]]:
    """Gives what waits for the numbers, and not for what the device is asked for after them."""
    if not numbers.is_cuda:
        return numbers.tolist
    copy = numbers.to("cpu", non_blocking=True)
    there = torch.cuda.Event()
    there.record()

    def waited() -> list[list[int]]:
        there.synchronize()
        return copy.tolist()

    return waited


def inverse_of(permutation: Tensor) -> Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(len(permutation), device=permutation.device)
    return inverse


def expert_major(counts: Tensor, rows: int) -> Tensor:
    """Returns the places of rows that have come from each rank by expert, in the order of experts;
    counts [ranks, experts]. The host knows the number of rows, and waits for nothing."""
    flat = counts.flatten()
    begins = (flat.cumsum(0) - flat).view_as(counts)
    sizes = counts.t().flatten()
    moved = begins.t().flatten() - (sizes.cumsum(0) - sizes)
    shift = moved.repeat_interleave(sizes, output_size=rows)
    return torch.arange(rows, device=counts.device) + shift


class _Exchanged(torch.autograd.Function):
    """Rows by all_to_all, and their gradients back."""

    @staticmethod
    def forward(ctx, rows, arriving, leaving, group):
        ctx.splits = leaving, arriving, group
        return _exchanged(rows, arriving, leaving, group)

    @staticmethod
    def backward(ctx, gradient):
        return _exchanged(gradient.contiguous(), *ctx.splits), None, None, None


def _exchanged(rows: Tensor, arriving: list[int], leaving: list[int], group: Any) -> Tensor:
    out = rows.new_empty((sum(arriving), rows.shape[1]))
    dist.all_to_all_single(out, rows, arriving, leaving, group=group)
    return out


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, permutation, inverse):
        ctx.save_for_backward(inverse)
        return rows.index_select(0, permutation)

    @staticmethod
    def backward(ctx, gradient):
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(0, inverse), None, None


class _RowsOfChoices(torch.autograd.Function):
    """A row of x for each choice; the gradient is a sum over the choices of a token."""

    @staticmethod
    def forward(ctx, x, tokens, places, k, summed):
        ctx.save_for_backward(places)
        ctx.k, ctx.summed = k, summed
        return x.index_select(0, tokens)

    @staticmethod
    def backward(ctx, gradient):
        (places,) = ctx.saved_tensors
        return ctx.summed(gradient, places, ctx.k), None, None, None, None
