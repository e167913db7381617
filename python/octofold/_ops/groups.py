"""The groups of a product, whose sizes are numbers on the device."""

from typing import NamedTuple, TypeAlias

from .._core.frameworks import Array


class Rows(NamedTuple):
    """Groups of consecutive rows of `a`, such as the tokens of experts.

    offsets: int32 [G + 1], on the device of `a`: group g has the rows from offsets[g] up to
        offsets[g + 1]. Offsets begin at 0, never decrease, and end at M or before.
    """

    offsets: Array


class Masked(NamedTuple):
    """Groups with room for equally many rows, of which the first ones count.

    counts: int32 [G], on the device of `a`, from 0 to `rows`.
    expected_rows: the number of rows that a group is expected to have, by which the kernel is
        chosen. None: all.
    """

    counts: Array
    expected_rows: int | None = None


class Depth(NamedTuple):
    """Groups along K, each with a result of its own, as the gradients by the weights of experts.

    offsets: int32 [G + 1], on the device of `a`, of the rows that were cast: as in Rows.
    layout: "spaced": group g begins at column 128 · (offsets[g] // 128 + g), of 128 · (rows // 128
        + G) for so many rows that were cast. "tight": at column offsets[g], of 128 · (rows // 128);
        all offsets are then multiples of 128, as DeepGEMM and torchao have them.
    """

    offsets: Array
    layout: str = "spaced"


Groups: TypeAlias = Rows | Masked | Depth
