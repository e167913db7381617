"""The cast to FP8: what is read times what is written."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Generic, NamedTuple, TypedDict, TypeVar, Unpack, overload

from .._core.arrays import framework_for
from .._core.calls import Op
from .._core.errors import invalid_argument, require_type
from .._core.formats import FP8, Format, FormatLike, dtype_name, format_of, require_alike
from .._core.frameworks import Array, StreamLike
from .._core.ops import Arrays, Options
from .._core.scaled_tensor import ScaledTensor
from .cast_row import GIVEN, OPTIONS
from .cast_sources import PLAIN, Normed, NormStatistics, Source
from .grouped_gemm import Depth, Rows

_OPERATION = "cast"


@dataclass(frozen=True, eq=False)
class Target:
    """A target of cast() that needs more than a format.

    format: a Format or its words.
    scale: static scales, float32, in the shape that scale_shape() gives for the result, which is
        cast with them and holds them. None: each unit's scale is computed.
    amax: the largest magnitudes of the units, float32, in the shape of the scales, with granularity
        "tensor" or "channel" and no `scale`: those of a whole array, of which the source is a part,
        such as a rank has of it. Scales are computed from them and not from what the source holds,
        so that scales and codes are the bits that a cast of the whole has there. A value beyond its
        amax becomes what it would with a static scale, the largest FP8 number or NaN, as `overflow`
        says. Signs do not count; NaN and infinity are as if found in the data.
    out: where to write, of the dtype and granularity of the format: codes and scales (with `scale`:
        only the codes). As in gemm(), nothing may require a gradient.
    """

    format: FormatLike
    _: KW_ONLY
    scale: Array | None = None
    amax: Array | None = None
    out: ScaledTensor | None = None


R_co = TypeVar("R_co", bound=ScaledTensor | None, covariant=True)
T_co = TypeVar("T_co", bound=ScaledTensor | None, covariant=True)


class Casts(NamedTuple, Generic[R_co, T_co]):
    """The results of cast(); None for what was not asked for.

    rows: the cast of the matrix, [..., cols].
    transposed: the cast of its transpose, [cols, rows].
    sums: the sum of each column over all rows, float32 [cols]: 0 for no rows, NaN and infinities by
        IEEE rules. The sums of a gradient are the gradient by the bias.
    amax: the largest magnitude of each column, float32 [cols], NaN for a column that has one.
    norm: the statistics of a Normed source.
    """

    rows: R_co
    transposed: T_co
    sums: Array | None = None
    amax: Array | None = None
    norm: NormStatistics | None = None


Wanted = FormatLike | Target
AnyCasts = Casts[ScaledTensor | None, ScaledTensor | None]


class _More(TypedDict, total=False):
    columns: str | None
    offsets: Array | Depth | None
    matrices: int | Rows | None
    stream: StreamLike | None


@overload
def cast(
    source: Array | Source, *, rows: Wanted, transposed: Wanted, **more: Unpack[_More]
) -> Casts[ScaledTensor, ScaledTensor]: ...
@overload
def cast(
    source: Array | Source, *, rows: Wanted, transposed: None = None, **more: Unpack[_More]
) -> Casts[ScaledTensor, None]: ...
@overload
def cast(
    source: Array | Source, *, rows: None = None, transposed: Wanted, **more: Unpack[_More]
) -> Casts[None, ScaledTensor]: ...
@overload
def cast(
    source: Array | Source, *, rows: Wanted, transposed: Wanted | None, **more: Unpack[_More]
) -> Casts[ScaledTensor, ScaledTensor | None]: ...
@overload
def cast(
    source: Array | Source,
    *,
    rows: Wanted | None = None,
    transposed: Wanted | None = None,
    **more: Unpack[_More],
) -> AnyCasts: ...
def cast(
    source: Array | Source,
    *,
    rows: Wanted | None = None,
    transposed: Wanted | None = None,
    columns: str | None = None,
    offsets: Array | Depth | None = None,
    matrices: int | Rows | None = None,
    stream: StreamLike | None = None,
) -> AnyCasts:
    """Cast a matrix, its transpose or both to FP8, with FP32 scales, and reduce its columns.

    source: an array [..., cols], float32, float16 or bfloat16, columns contiguous, any row stride
        (leading dimensions are more rows, as far as one stride can walk them); or a matrix that is
        worked out on the way: ops.Activated, ActivationGradient, Normed or Gathered. The result is,
        bit for bit on the same device, the cast of that matrix in memory.
    rows: how the matrix itself is cast: a Format, its words, or a Target. None: not at all.
    transposed: how its transpose [cols, rows] is cast, without a copy of it; all leading dimensions
        count as rows. Where both are wanted, they differ in granularity alone. They come from as
        few reads of the source as that takes: one, for block scales of one granularity, for
        "128x128" beside rows of "1x128", for "channel" of a given amax beside these, and where both
        have an amax.
    columns: what to compute of each column over all rows: "sums", "amax" (the largest magnitudes)
        or "both". On a GPU sums are added in FP32, on the CPU in FP64 and rounded once; the same
        input gives the same bits. Not beside `offsets` or `matrices`. Rows of "channel" alone are
        read twice on a GPU.
    offsets: of a source whose rows are sorted by group: int32 [groups + 1], where each group
        begins, and where the last one ends; the cast of rows behind that is undefined. It takes a
        transpose, which then has the K-group layout, of Depth(offsets), or of the Depth that is
        given here: [cols, columns], where the rows of a group are the columns from its first on,
        and zeros up to the next multiple of 128; other columns, and their scales, are not written.
        So a scale of "1x128" or "128x128" is for rows of one group alone; one of "tensor" or
        "channel" is for all groups. Rows may not be of "128x128" from the same read. Sizes may be
        0. On a GPU what offsets hold is not looked at before: no numbers make it read or write
        outside of the arrays.
    matrices: of an array that is a stack of so many matrices, one below another: as in quantize().
        The transposes are [matrices, cols, rows / matrices]. Rows(offsets), of as many groups as
        there are matrices: those that grouped_gemm() multiplies by them. A matrix whose group has
        no rows is then neither read nor cast: its codes and scales are not written. On a GPU the
        offsets are not looked at before, and the host waits for nothing.
    stream: as in gemm().

    Returns Casts, in the framework of the source. On a GPU 1x128 scales have the strides that
    gemm() reads fastest, (1, rows rounded up to a multiple of 4). NaN and infinities follow IEEE
    rules. Nothing is differentiated: backward through it raises RuntimeError.
    Raises InvalidArgumentError that names the argument.
    """
    of_rows = None if rows is None else target_of("rows", rows)
    of_transpose = None if transposed is None else target_of("transposed", transposed)
    if matrices is not None and isinstance(source, Source):
        expected = f"None, as the source is {type(source).__name__}: an array alone can be a stack"
        raise invalid_argument(_OPERATION, "matrices", expected, repr(matrices))
    stack = _stack_of(matrices)
    if of_rows is None or of_transpose is None:
        if of_rows is None and of_transpose is None:
            expected = "a format here, or for 'transposed'"
            raise invalid_argument(_OPERATION, "rows", expected, "None")
        return _read_once(source, of_rows, of_transpose, columns, offsets, stack, stream)
    require_alike(_OPERATION, "rows", of_rows.format, "transposed", of_transpose.format)
    if share_a_read(source, of_rows, of_transpose):
        return _read_once(source, of_rows, of_transpose, columns, offsets, stack, stream)
    first = _read_once(source, of_rows, None, None, None, stack, stream)
    if isinstance(source, Normed) and first.norm is not None and first.norm.sum is not None:
        source = replace(source, x=first.norm.sum, residual=None)
    second = _read_once(source, None, of_transpose, columns, offsets, stack, stream)
    return Casts(first.rows, second.transposed, second.sums, second.amax, first.norm)


class _Stack(NamedTuple):
    """How many matrices a source is, and which of them are cast: those whose groups have rows."""

    matrices: int | None
    used: Array | None


def _stack_of(matrices: int | Rows | None) -> _Stack:
    if not isinstance(matrices, Rows):
        return _Stack(matrices, None)
    shape = tuple(getattr(matrices.offsets, "shape", ()))
    if len(shape) != 1 or shape[0] < 2:
        expected = "int32 [matrices + 1], of at least one matrix"
        raise invalid_argument(_OPERATION, "matrices.offsets", expected, f"{shape}")
    return _Stack(shape[0] - 1, matrices.offsets)


class FormattedTarget(NamedTuple):
    """A Target whose format is one."""

    format: Format
    scale: Array | None
    amax: Array | None
    out: ScaledTensor | None


def target_of(argument: str, wanted: Wanted, operation: str = _OPERATION) -> FormattedTarget:
    """The target for what is wanted, with a format that is a Format."""
    if not isinstance(wanted, Target):
        return FormattedTarget(format_of(operation, wanted, argument), None, None, None)
    format = format_of(operation, wanted.format, f"{argument}.format")
    if wanted.out is not None:
        require_format(operation, f"{argument}.out", wanted.out, format)
    return FormattedTarget(format, wanted.scale, wanted.amax, wanted.out)


def require_format(operation: str, argument: str, out: ScaledTensor, format: Format) -> None:
    """Checks that the memory to write to is of this dtype and granularity."""
    require_type(operation, argument, out, ScaledTensor, "a ScaledTensor")
    held = dtype_name(operation, argument, out.dtype, FP8)
    if (held, out.granularity) != (format.dtype, format.granularity):
        expected = f"codes and scales of the format: {format.dtype} {format.granularity}"
        raise invalid_argument(operation, argument, expected, f"{held} {out.granularity}")


def share_a_read(
    source: Array | Source, rows: FormattedTarget, transposed: FormattedTarget
) -> bool:
    """True if one call of the library writes both casts. All of Octofold asks here alone, or in
    one_read()."""
    static = rows.scale is not None
    if static != (transposed.scale is not None):
        return False
    if (rows.out is None) != (transposed.out is None):
        return False  # a call writes into memory of its caller, or into new memory
    if rows.format.granularity == transposed.format.granularity:
        return (rows.amax is None) == (transposed.amax is None)
    if isinstance(source, Normed):
        return False  # rows alone are cast by the kernel that norms them
    return one_read(rows.format, transposed.format, static)


def one_read(rows: Format, transposed: Format, static: bool = False) -> bool:
    """The same of a plain array, by the formats alone: with static scales, or scales of the data
    alike."""
    pair = rows.granularity, transposed.granularity
    if pair[0] == pair[1] or pair == ("1x128", "channel"):
        return True
    return pair == ("1x128", "128x128") and not static


def _read_once(
    source: Array | Source,
    rows: FormattedTarget | None,
    transposed: FormattedTarget | None,
    columns: str | None,
    offsets: Array | Depth | None,
    stack: _Stack,
    stream: StreamLike | None,
) -> AnyCasts:
    """cast() of targets that one call of the library writes."""
    inputs: Arrays
    options: Options
    if isinstance(source, Source):
        row = source.row
        inputs, options = source.operands()
    else:
        row, inputs, options = PLAIN, (source, stack.used), ()
    first, second = rows or _NONE, transposed or _NONE
    inputs += (first.scale, first.amax)
    groups = offsets if offsets is None or isinstance(offsets, Depth) else Depth(offsets)
    numbers, layout = groups or (None, None)
    inputs += (second.scale, second.amax, numbers)
    format = first.format if rows is not None else second.format
    options += (
        None if rows is None else format.granularity,
        None if transposed is None else second.format.granularity,
        *format.options,
        stack.matrices,
        columns,
        layout,
    )
    out = _written(row, inputs, options, first.out, second.out, columns, stream)
    data, scale, transposed_data, transposed_scale, sums, amax, _, *norm = row(
        inputs, options, format.dtype, out, stream
    )
    return Casts(
        None if rows is None else _result(rows, data, scale),
        None if transposed is None else _result(transposed, transposed_data, transposed_scale),
        sums,
        amax,
        NormStatistics(*norm) if norm else None,
    )


_NONE = FormattedTarget(Format(), None, None, None)


def _result(target: FormattedTarget, data: Array, scale: Array | None) -> ScaledTensor:
    if target.out is not None and target.scale is None:
        return target.out
    used = scale if target.scale is None else target.scale
    return ScaledTensor(data, used, target.format.granularity)


def _written(
    row: Op,
    inputs: Arrays,
    options: Options,
    rows: ScaledTensor | None,
    transposed: ScaledTensor | None,
    columns: str | None,
    stream: StreamLike | None,
) -> Arrays | None:
    """The memory that a row is to write to: None for new memory, else that of the caller, and new
    memory for what he has given none for."""
    if rows is None and transposed is None:
        return None
    rows_scale, _, transposed_scale, _, _ = inputs[-len(GIVEN) :]
    written: Arrays = (
        None if rows is None else rows.data,
        None if rows is None or rows_scale is not None else rows.scale,
        None if transposed is None else transposed.data,
        None if transposed is None or transposed_scale is not None else transposed.scale,
    )
    if columns is None and len(row.results) == 7:
        return (*written, None, None, None)
    framework = framework_for(_OPERATION, "source", inputs[0], stream)
    first = len(options) - len(OPTIONS)
    beside = (*options[:first], None, None, *options[first + 2 :])
    return written + row.allocate(framework, inputs, beside, "")[4:]
