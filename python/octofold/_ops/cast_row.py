"""The rows of the casts, one for each source: they differ in what they read, nothing else.

After what a source reads, every row has the same inputs (what is given for the two targets, and
where groups begin), the same results and the same options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from .._core.calls import Op
from .._core.errors import invalid_argument, with_errors_in_words_of
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, quick_scale_shape, require_stack, row_count

NAMES: Final = {
    **{f"out.{name}": name for name in ("rows", "transposed", "columns")},
    **{
        f"out.{target}.{part}": f"{target}.{part}"
        for target in ("rows", "transposed")
        for part in ("scale", "amax")
    },
    **{f"out.columns.{name}": name for name in ("sums", "amax", "workspace")},
    "norm": "kind",
    "used": "matrices.offsets",
}
"""The names in the library's messages, in the words of cast()."""

ShapeOf: TypeAlias = Callable[[Arrays, Options], Sequence[int]]
"""Shape [..., cols] of the matrix that a source is, from the inputs and options of its row. Raises
InvalidArgumentError where it is none."""

Allocate: TypeAlias = Callable[[Framework, Arrays, Options], Arrays]
"""Allocates what a source writes beside the casts."""

GIVEN: Final[dict[str, Any]] = {
    "rows.scale": Array | None,
    "rows.amax": Array | None,
    "transposed.scale": Array | None,
    "transposed.amax": Array | None,
    "offsets": Array | None,
}
"""The inputs after those of the source."""

RESULTS: Final = (
    "out.rows?",
    "out.rows.scale?",
    "out.transposed?",
    "out.transposed.scale?",
    "out.sums?",
    "out.amax?",
    "out.workspace?",
)
"""The results before those of the source. A target whose scales are given has none of its own."""

OPTIONS: Final[dict[str, Any]] = {
    "rows": str | None,
    "transposed": str | None,
    "power_of_two": bool | None,
    "overflow": str,
    "rule": str,
    "matrices": int | None,
    "columns": str | None,
    "offsets.layout": str | None,
}
"""The options after those of the source: the granularity of either target (None: it is not wanted),
what both have in common, and what is wanted of the columns."""


def cast_row(
    source: str,
    reads: Mapping[str, Any],
    shape: ShapeOf,
    options: Mapping[str, Any] | None = None,
    writes: Sequence[str] = (),
    allocate: Allocate | None = None,
) -> Op:
    """The row of a source.

    source: its kind, as the library's cast() knows it. The function that this gives takes the
        arguments of the row in its order.
    reads, options: names and types of its inputs and options.
    shape: of the matrix that is cast.
    writes, allocate: names of what it writes beside the casts, and that.
    """
    reads_scaled = sum(1 for kind in reads.values() if kind is not Array and kind != Array | None)
    first_given = len(reads) + reads_scaled

    def results(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
        casts = _allocate(framework, shape(inputs, options), inputs[first_given:], options, dtype)
        return casts if allocate is None else casts + allocate(framework, inputs, options)

    parameters = {**reads, **GIVEN, **(options or {}), **OPTIONS}

    def load() -> Callable[..., None]:
        return with_errors_in_words_of("cast", library.cast(source), NAMES)

    name = "cast" if source == "plain" else f"cast_{source}"
    return Op(name, parameters, (*RESULTS, *writes), results, load)


def _allocate(
    framework: Framework, shape: Sequence[int], given: Arrays, options: Options, dtype: str
) -> Arrays:
    """RESULTS for a matrix of `shape`."""
    rows_scale, _, transposed_scale, _, offsets = given
    rows, transposed, _, _, _, matrices, columns, layout = options[-len(OPTIONS) :]
    require_stack("cast", shape, matrices)
    of_rows: Arrays = (None, None)
    of_transpose: Arrays = (None, None)
    if rows is not None:
        of_rows = _allocate_target(framework, shape, dtype, rows, matrices, rows_scale)
    group_columns = _group_columns(row_count(shape), offsets, layout, transposed is not None)
    if transposed is not None:
        *leading, of_matrix = transposed_shape(shape, matrices)
        across = of_matrix if offsets is None else group_columns
        of_transpose = _allocate_target(
            framework, (*leading, across), dtype, transposed, matrices, transposed_scale
        )
    return of_rows + of_transpose + _allocate_columns(framework, shape, columns)


def transposed_shape(shape: Sequence[int], matrices: int | None = None) -> tuple[int, ...]:
    """The shape of the transpose of [..., cols], whose leading dimensions count as rows; for so
    many matrices one below another, the shape of the stack of their transposes."""
    if matrices is None:
        return shape[-1], row_count(shape)
    return matrices, shape[-1], row_count(shape) // matrices


def _group_columns(rows: int, offsets: Array | None, layout: str | None, transposed: bool) -> int:
    """Columns of a transpose of so many rows in the K-group layout."""
    if offsets is None:
        return 0
    shape = tuple(offsets.shape)
    if not transposed:
        expected = "None without a transposed target, whose layout it decides"
        raise invalid_argument("cast", "offsets", expected, f"{shape}")
    if len(shape) != 1 or shape[0] < 2:
        expected = "int32 [groups + 1], of at least one group"
        raise invalid_argument("cast", "offsets", expected, f"{shape}")
    return 128 * (rows // 128 + (shape[0] - 1 if layout == "spaced" else 0))


def _allocate_target(
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    granularity: str,
    matrices: int | None,
    scale: Array | None,
) -> Arrays:
    """Codes of `shape`, and their scales unless some are given."""
    data = framework.empty_codes(shape, dtype)
    if scale is not None:
        return data, None
    scale_shape = quick_scale_shape(granularity, shape, matrices)
    return data, framework.empty_scale(scale_shape, granularity)


def _allocate_columns(framework: Framework, shape: Sequence[int], columns: str | None) -> Arrays:
    """The sums, the largest magnitudes, and the memory to work them out in."""
    if columns is None:
        return None, None, None
    if columns not in ("sums", "amax", "both"):
        expected = "one of sums, amax, both, or None"
        raise invalid_argument("cast", "columns", expected, repr(columns))
    of_sums, of_amax = columns != "amax", columns != "sums"
    cols = shape[-1]
    workspace = (workspace_rows(row_count(shape), of_sums, of_amax), cols)
    return (
        framework.empty((cols,), "float32") if of_sums else None,
        framework.empty((cols,), "float32") if of_amax else None,
        framework.empty(workspace, "float32"),
    )


def workspace_rows(rows: int, of_sums: bool, of_amax: bool) -> int:
    """column_workspace_rows() of the library, for torch's symbolic sizes too."""
    return (of_sums + of_amax) * ((rows + 127) // 128)
