"""What fused casts write: the cast of a matrix, of its transpose, or both."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .errors import invalid_argument
from .frameworks import Array, Framework
from .ops import Arrays, quick_scale_shape, row_count
from .scaled_tensor import ScaledTensor

Casts: TypeAlias = Any
"""A ScaledTensor; of both targets a pair of them, (rows, transposed). Where `columns` says what is
wanted of columns, a tuple that ends with ColumnReductions: (cast, columns) or (rows, transposed,
columns)."""


class ColumnReductions(NamedTuple):
    """What a cast works out of each column of the matrix that is cast, over all rows, in the dtype
    that it is cast from.

    sums: float32 [cols]: of a gradient, that by the bias. None if not wanted.
    amax: the largest magnitudes, float32 [cols], NaN of a column that has one. None if not wanted.
    """

    sums: Array | None
    amax: Array | None


RESULTS_OF_TARGETS: Final = (
    "out.rows?",
    "out.rows.scale?",
    "out.transposed?",
    "out.transposed.scale?",
)
"""Of an op whose option `targets` says which there are."""

_RESULTS_OF_COLUMNS: Final = ("out.columns.sums?", "out.columns.amax?", "out.columns.workspace?")
RESULTS: Final = (*RESULTS_OF_TARGETS, *_RESULTS_OF_COLUMNS)
"""Of an op whose last options are `targets` ("rows", "transposed" or "both") and `columns` ("sums",
"amax", "both" or None)."""

_NONE: Final[Arrays] = (None, None)


def transposed_shape(shape: Sequence[int], matrices: int | None = None) -> tuple[int, ...]:
    """Of the transpose of [..., cols], whose leading dimensions count as rows; of so many matrices
    one below another, of the stack of theirs."""
    if matrices is None:
        return shape[-1], row_count(shape)
    return matrices, shape[-1], row_count(shape) // matrices


def group_columns(operation: str, rows: int, offsets: Array | None, transposed: bool = True) -> int:
    """Columns of the transpose of so many rows: in the K-group layout, where there are offsets."""
    if offsets is None:
        return rows
    shape = tuple(offsets.shape)
    if not transposed:
        expected = "None without a transposed target, whose layout it decides"
        raise invalid_argument(operation, "offsets", expected, f"{shape}")
    if len(shape) != 1 or shape[0] < 2:
        expected = "int32 [groups + 1], of at least one group"
        raise invalid_argument(operation, "offsets", expected, f"{shape}")
    groups: int = shape[0] - 1
    return 128 * (rows // 128 + groups)


def allocate_cast(
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    granularity: str,
    matrices: int | None = None,
) -> Arrays:
    """Codes of `shape`, and their scales."""
    scale_shape = quick_scale_shape(granularity, shape, matrices)
    return framework.empty(shape, dtype), framework.empty_scale(scale_shape, granularity)


def allocate_targets(
    operation: str,
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    targets: str,
    granularity: str,
    transposed_granularity: str | None = None,
    columns: str | None = None,
    offsets: Array | None = None,
) -> Arrays:
    """RESULTS for a matrix of `shape`."""
    return (
        *allocate_casts(
            operation,
            framework,
            shape,
            dtype,
            targets,
            granularity,
            transposed_granularity,
            offsets,
        ),
        *_allocate_columns(operation, framework, shape, columns),
    )


def allocate_casts(
    operation: str,
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    targets: str,
    granularity: str,
    transposed_granularity: str | None,
    offsets: Array | None,
) -> Arrays:
    """RESULTS_OF_TARGETS, likewise."""
    if targets not in ("rows", "transposed", "both"):
        expected = "one of rows, transposed, both"
        raise invalid_argument(operation, "targets", expected, repr(targets))
    rows = transposed = _NONE
    columns = group_columns(operation, row_count(shape), offsets, targets != "rows")
    if targets != "transposed":
        rows = allocate_cast(framework, shape, dtype, granularity)
    if targets != "rows":
        of_transpose = granularity if transposed_granularity is None else transposed_granularity
        transposed = allocate_cast(framework, (shape[-1], columns), dtype, of_transpose)
    return rows + transposed


def _allocate_columns(
    operation: str, framework: Framework, shape: Sequence[int], columns: str | None
) -> Arrays:
    if columns is None:
        return None, None, None
    if columns not in ("sums", "amax", "both"):
        expected = "one of sums, amax, both, or None"
        raise invalid_argument(operation, "columns", expected, repr(columns))
    of_sums, of_amax = columns != "amax", columns != "sums"
    cols = shape[-1]
    workspace = (_workspace_rows(row_count(shape), of_sums, of_amax), cols)
    return (
        framework.empty((cols,), "float32") if of_sums else None,
        framework.empty((cols,), "float32") if of_amax else None,
        framework.empty(workspace, "float32"),
    )


def _workspace_rows(rows: int, of_sums: bool, of_amax: bool) -> int:
    """column_workspace_rows() of the library, for torch's symbolic sizes too."""
    return (of_sums + of_amax) * ((rows + 127) // 128)


def casts_of(
    results: Arrays,
    granularity: str,
    transposed_granularity: str | None = None,
    channel_scale: Array | None = None,
    transposed_channel_scale: Array | None = None,
) -> Casts:
    """What the caller gets of RESULTS, or of RESULTS_OF_TARGETS."""
    rows, rows_scale, transposed, transposed_scale, *columns = results
    casts: tuple[Any, ...] = ()
    if rows is not None:
        casts = (ScaledTensor(rows, rows_scale, granularity, channel_scale),)
    if transposed is not None:
        of_transpose = transposed_granularity or granularity
        factors = transposed_channel_scale
        casts += (ScaledTensor(transposed, transposed_scale, of_transpose, factors),)
    reductions = columns[:2]
    if any(one is not None for one in reductions):
        return *casts, ColumnReductions(*reductions)
    return casts[0] if len(casts) == 1 else casts


def without_targets(function: Callable[..., None]) -> Callable[..., None]:
    """The library sees by its results what is wanted."""

    def call(*arguments: Any) -> None:
        *others, _targets, _columns, stream = arguments
        function(*others, stream)

    return call
