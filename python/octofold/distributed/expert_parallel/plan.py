"""How tokens travel to their experts: which of them go to which rank, and where they stand in what
is sent.

A token goes once to each rank that has any of its experts, whatever the number of them. Rows are
sent in the order of ranks, and for each rank in the order of tokens:

    experts of t0: 0 3    expert 0, 1: rank 0    row      0   1   2   3
               t1: 1 0           2, 3: rank 1    rank     0   0   1   1
               t2: -1 2                          source  t0  t1  t0  t2

How many rows that are only the device knows. Either it tells the host (`exact`), or there is room
for a fixed number of them for each pair of ranks (`fixed`), and rows beyond it are left out.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..._core.errors import invalid_argument
from ..._core.formats import Format
from ..._ops.routing import sort_by_expert
from ..._ranks import Ranks, ranks_of, require_agreed
from ..._ranks.wire import exchanged, gathered

NAME: Final = "octofold.distributed.experts"
"""In which errors are."""

WIRES: Final = ("fp8", "input")
COMBINED: Final = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Exchange:
    """How the tokens of experts travel between the ranks of a group.

    ranks: those over which the experts are spread, in blocks.
    wire: "fp8": tokens and their gradients go to the experts as codes with scales; "input": in
        their own dtype, and are cast where the experts are.
    capacity: how many rows each rank sends to each, in each part of the batch; None: as many as
        there are, for which the host waits.
    local_rows: with a capacity, for how many choices of this rank's experts products have room, in
        each part; None: for all that may come, capacity · ranks · k.
    combine_dtype: in which results and gradients travel back; None: that of x.
    halves: the parts of the batch, 1 or 2. The exchange of one goes beside the products of the
        other.
    """

    ranks: Ranks
    wire: str = "fp8"
    capacity: int | None = None
    local_rows: int | None = None
    combine_dtype: torch.dtype | None = None
    halves: int = 1

    def format(self, of_rows: Format | None) -> Format | None:
        """The wire format of rows that a recipe casts so; None: they travel as they are."""
        return of_rows if self.wire == "fp8" else None

    def facts(self) -> dict[str, object]:
        """The options that all ranks have to agree on."""
        names = ("wire", "capacity", "local_rows", "combine_dtype", "halves")
        return {name: getattr(self, name) for name in names}


def exchange_of(operation: str, group: Any, **options: Any) -> Exchange:
    """Makes an Exchange of its options. Raises InvalidArgumentError that names the argument."""
    exchange = Exchange(ranks_of(operation, "group", group), **options)
    if exchange.wire not in WIRES:
        raise invalid_argument(operation, "wire", "'fp8' or 'input'", repr(exchange.wire))
    for name in ("capacity", "local_rows"):
        value = getattr(exchange, name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            expected = "a whole number of rows, at least 1, or None"
            raise invalid_argument(operation, name, expected, repr(value))
    if exchange.local_rows is not None and exchange.capacity is None:
        expected = "None without a capacity, as there is room for all rows"
        raise invalid_argument(operation, "local_rows", expected, exchange.local_rows)
    if exchange.combine_dtype is not None and exchange.combine_dtype not in COMBINED:
        expected = "torch.bfloat16, float16 or float32, or None"
        raise invalid_argument(operation, "combine_dtype", expected, repr(exchange.combine_dtype))
    if exchange.halves not in (1, 2):
        raise invalid_argument(operation, "halves", "1 or 2", repr(exchange.halves))
    return exchange


_BAD_IDS: Final = -1

_is_compiling: Final = torch.compiler.is_compiling


class Plan(NamedTuple):
    """How the tokens of this rank travel."""

    sources: Tensor
    """int32 [sent rows]: token · ranks + rank, -1 where there is no row."""
    positions: Tensor
    """int32 [tokens, ranks]: the row of a token that goes to a rank, -1 where it does not."""
    sent: list[int] | None
    """Rows to each rank; None: equally many."""
    received: list[int] | None
    slots: int | None
    """How many choices of this rank's experts arrive; None: only the device knows."""


def parts_of(rows: Tensor, plans: tuple[Plan, ...]) -> list[Tensor]:
    """Rows of all tokens of this rank, by the parts of the batch that have a plan each."""
    if len(plans) == 1:
        return [rows]
    return list(torch.split(rows, [plan.positions.shape[0] for plan in plans]))


class Order(NamedTuple):
    """The rows that go to each rank, as the device knows them."""

    offsets: Tensor
    sources: Tensor
    positions: Tensor
    slots: Tensor
    """int32 [ranks]: how many choices of the rank's experts there are."""
    bad: bool
    """True if there are ids of experts that do not exist (those on a GPU nobody looks at)."""


def order_of(ids: Tensor, experts: int, ranks: Ranks) -> Order:
    """Orders ids [tokens, k], int32 or int64, of experts spread over the ranks in blocks."""
    bad = False
    if not ids.is_cuda and not _is_compiling():
        bad = bool(((ids < -1) | (ids >= experts)).any())
    numbers = torch.arange(ranks.size, dtype=torch.int32, device=ids.device)
    owners = owners_of(ids, experts // ranks.size)
    chosen = owners.unsqueeze(-1) == numbers
    slots = chosen.sum((0, 1), dtype=torch.int32)
    ranks_of_token = torch.where(chosen.any(1), numbers, -1)
    return Order(*sort_by_expert(ranks_of_token, ranks.size), slots, bad)


def owners_of(ids: Tensor, per_rank: int) -> Tensor:
    """The rank of each expert; negative for -1."""
    return torch.div(ids, per_rank, rounding_mode="floor")


def exact(operation: str, orders: list[Order], ranks: Ranks) -> list[Plan]:
    """Plans by which all rows travel and no others. The host waits, once, for how many there are:
    of all parts of the batch together; and before, for what ranks said, as a device that waits for
    a rank that is gone keeps the host for good."""
    counts = torch.stack([torch.stack((o.offsets.diff(), o.slots), -1) for o in orders], 1)
    counts = counts.flatten(1)  # [ranks, (rows, slots) of each part]
    if any(order.bad for order in orders):
        counts = torch.full_like(counts, _BAD_IDS)
    if not _is_compiling():
        require_agreed(ranks, wait=True)
    arriving = exchanged(operation, counts, ranks)
    leaving_rows, arriving_rows = torch.stack((counts, arriving)).tolist()
    _require_ids(operation, [row[0] == _BAD_IDS for row in arriving_rows], ranks)
    plans = []
    for part, order in enumerate(orders):
        sent = [row[2 * part] for row in leaving_rows]
        received = [row[2 * part] for row in arriving_rows]
        slots = sum(row[2 * part + 1] for row in arriving_rows)
        sources = order.sources[: sum(sent)]
        plans.append(Plan(sources, order.positions, sent, received, slots))
    return plans


def fixed(order: Order, capacity: int, ranks: Ranks) -> tuple[Plan, Tensor]:
    """A plan by which `capacity` rows go from each rank to each, and how many rows did not fit, [1]
    on the device. The host waits for nothing."""
    offsets, sources, positions = order[:3]
    begins, counts = offsets[:-1], offsets.diff()
    place = torch.arange(ranks.size * capacity, dtype=torch.int32, device=offsets.device)
    rank, within = place // capacity, place % capacity
    nobody = sources.shape[0]
    row = torch.where(within < counts[rank], begins[rank] + within, nobody)
    filled = torch.cat((sources, sources.new_full((1,), -1)))[row]
    numbers = torch.arange(ranks.size, dtype=torch.int32, device=offsets.device)
    of_rank = positions - begins
    fits = (positions >= 0) & (of_rank < capacity)
    positions = torch.where(fits, numbers * capacity + of_rank, -1)
    dropped = (counts - capacity).clamp(min=0).sum().view(1)
    return Plan(filled, positions, None, None, None), dropped


def require_room(
    operation: str, argument: str, room: int, dropped: Tensor, bad: bool, ranks: Ranks
) -> None:
    """On the CPU: that on no rank anything was dropped, and no id was bad. All ranks raise. On a
    GPU it would take a wait: whoever drops counts."""
    if dropped.is_cuda or _is_compiling():
        return
    own = torch.full_like(dropped, _BAD_IDS) if bad else dropped
    of_ranks = gathered(operation, own, ranks).tolist()
    _require_ids(operation, [number == _BAD_IDS for number in of_ranks], ranks)
    for rank, number in enumerate(of_ranks):
        if number > 0:
            expected = f"room for all rows, got {room}, {number} too few on rank {rank}"
            raise invalid_argument(operation, argument, expected, f"{room} (this is {ranks})")


def _require_ids(operation: str, bad: list[bool], ranks: Ranks) -> None:
    wrong = [rank for rank, is_bad in enumerate(bad) if is_bad]
    if wrong:
        expected = "experts that exist, or -1"
        got = f"others on rank {', '.join(map(str, wrong))} (this is {ranks})"
        raise invalid_argument(operation, "topk_ids", expected, got)
