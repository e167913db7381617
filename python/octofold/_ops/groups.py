"""What of a product is in groups, whose sizes are numbers on the device."""

from typing import NamedTuple, TypeAlias

from .._core.frameworks import Array


class Rows(NamedTuple):
    """Rows of `a` in groups, one after another, such as the tokens of experts.

    offsets: int32 [G + 1], on the device of `a`: the rows of g are those from offsets[g] up to
        offsets[g + 1]. They begin at 0, never decrease, and end at M or before.
    """

    offsets: Array


class Masked(NamedTuple):
    """Groups of rows that have room for as many each; the first of them count.

    counts: int32 [G], on the device of `a`, from 0 to `rows`.
    expected_rows: how many rows a group is expected to have; the kernel is chosen by it. None: all.
    """

    counts: Array
    expected_rows: int | None = None


class Depth(NamedTuple):
    """K in groups, each with a result of its own, as the gradients by the weights of experts.

    offsets: int32 [G + 1], on the device of `a`, of the rows that were cast: as in Rows.
    """

    offsets: Array


Groups: TypeAlias = Rows | Masked | Depth
