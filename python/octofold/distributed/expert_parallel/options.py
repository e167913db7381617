"""How the tokens of experts travel, as a value."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from ..._core.errors import invalid_argument
from ..._core.formats import Format
from ..._ranks.ranks import Ranks, ranks_of

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
