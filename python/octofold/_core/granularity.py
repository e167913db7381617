"""Granularities: which elements share a scale."""

from typing import Final, NamedTuple


class Unit(NamedTuple):
    """Rows and columns of the elements that share a scale; None: all that there are."""

    rows: int | None
    cols: int | None

    @property
    def is_of_a_row(self) -> bool:
        """True if scales go with rows: whoever takes some rows takes their scales."""
        return self.rows == 1

    @property
    def is_square(self) -> bool:
        """True if a transpose can have the same scales."""
        return self.rows == self.cols


UNITS: Final = {
    "tensor": Unit(None, None),
    "channel": Unit(1, None),
    "1x128": Unit(1, 128),
    "128x128": Unit(128, 128),
}
"""All that is known of granularities, as the library's kGranularityTable (vocabulary.h)."""

GRANULARITIES: Final = tuple(UNITS)
"""Every granularity there is."""

BY_COLUMNS: Final = frozenset(
    name for name, unit in UNITS.items() if unit.is_of_a_row and unit.cols is not None
)
"""The granularities whose scales lie column by column on GPUs, as products read them fastest."""
