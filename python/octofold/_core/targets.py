"""What fused casts write: the cast of a matrix, of its transpose, or both."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ..errors import invalid_argument
from ..scaled_tensor import ScaledTensor
from .frameworks import Framework
from .ops import Arrays, quick_scale_shape, row_count

Casts: TypeAlias = Any
"""A ScaledTensor; of both targets a pair of them, (rows, transposed)."""

RESULTS: Final = ("out.rows?", "out.rows.scale?", "out.transposed?", "out.transposed.scale?")
"""Of an op whose last option is `targets`: "rows", "transposed" or "both"."""

_NONE: Final = (None, None)


def allocate_targets(
    operation: str,
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    targets: str,
    granularity: str,
    transposed_granularity: str | None = None,
) -> Arrays:
    """RESULTS for a matrix of `shape`."""

    def cast(shape: Sequence[int], granularity: str) -> Arrays:
        scale_shape = quick_scale_shape(granularity, shape)
        return framework.empty(shape, dtype), framework.empty_scale(scale_shape, granularity)

    transposed = (shape[-1], row_count(shape))
    if targets == "rows":
        return cast(shape, granularity) + _NONE
    of_transpose = granularity if transposed_granularity is None else transposed_granularity
    if targets == "transposed":
        return _NONE + cast(transposed, of_transpose)
    if targets == "both":
        return cast(shape, granularity) + cast(transposed, of_transpose)
    expected = "one of rows, transposed, both"
    raise invalid_argument(operation, "targets", expected, repr(targets))


def casts_of(results: Arrays, granularity: str, transposed_granularity: str | None = None) -> Casts:
    """What the caller gets of RESULTS."""
    rows, rows_scale, transposed, transposed_scale = results
    if transposed is None:
        return ScaledTensor(rows, rows_scale, granularity)
    of_transpose = ScaledTensor(transposed, transposed_scale, transposed_granularity or granularity)
    if rows is None:
        return of_transpose
    return ScaledTensor(rows, rows_scale, granularity), of_transpose


def without_targets(function: Callable[..., None]) -> Callable[..., None]:
    """The library sees by its results what is wanted."""

    def call(*arguments: Any) -> None:
        *others, _targets, stream = arguments
        function(*others, stream)

    return call
