"""Casts to FP8."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, DTypeLike, dtype_name
from .._core.errors import InvalidArgumentError, invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix, require_stack
from .._core.scaled_tensor import ScaledTensor
from .._core.streams import StreamLike
from .._core.targets import (
    RESULTS,
    Casts,
    allocate_cast,
    allocate_targets,
    casts_of,
    group_columns,
    transposed_shape,
)


def quantize(
    x: Array,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    transpose: bool = False,
    stream: StreamLike | None = None,
    *,
    scale: Array | None = None,
    channel_scale: Array | None = None,
    matrices: int | None = None,
    out: ScaledTensor | None = None,
) -> ScaledTensor:
    """Cast a matrix to FP8 with one FP32 scale for each unit of its granularity.

    x: [..., cols] float32, float16 or bfloat16; columns contiguous, any row stride. Leading
        dimensions are more rows, as far as one stride can walk them.
    dtype: "e4m3" (float8_e4m3fn) or "e5m2".
    granularity: what shares a scale: "tensor", "channel" (each row), "1x128" (128 elements of a
        row) or "128x128" (a square). Partial units at the edges have scales of their own.
    power_of_two: round scales to powers of two; None: as the profile does by default (only "te"
        does).
    overflow: "saturate" clamps to the largest finite value, "nan" overflows as ml_dtypes does.
    profile: whose arithmetic to follow: "deepgemm", "vllm", "vllm-per-token", "te", "torchao",
        "torchao-tensor", "deepseek", "compressed-tensors" or "compressed-tensors-0.12".
        docs/numerics.md says which casts of each library these are, byte for byte.
    transpose: quantize the transpose of x [rows, cols], without a copy of it: the result is
        [cols, rows], where rows counts all leading dimensions.
    stream: as in gemm().
    scale: static scales, float32, in the shape that scale_shape() gives for the result: x is cast
        with them, and the result holds them. None: each unit's scale is worked out.
    channel_scale: two-level scales, with granularity "128x128": a factor for each row of the
        result, float32 [rows], contiguous. Cast are the FP32 products of x and the factors'
        reciprocals, and the result holds the factors; they may be those of data that x is much
        like. A factor that is no positive normal number counts as 1.
    matrices: x is a stack of so many matrices, one below another, as the weights of experts
        [experts, out, in] are: each is cast as if it were alone, by one launch on a GPU. The
        transpose is [matrices, cols, rows / matrices] then, and scales are [matrices] of "tensor",
        [matrices, ...] of "128x128" (scale_shape() has them): as grouped_gemm() takes them. A
        divisor of the rows.
    out: where to write, codes and scales (with `scale`: the codes alone). It says dtype and
        granularity: left at their defaults they follow it, else they have to agree; a channel_scale
        of its own is not looked at. As in gemm(), nothing may require a gradient.

    Returns `out` (with given scales or factors: its codes and these), or a ScaledTensor in the
    framework of x. On a GPU 1x128 scales have the strides that gemm() reads fastest, (1, rows
    rounded up to a multiple of 4). NaN and infinities follow IEEE rules. Nothing is differentiated:
    backward through it raises RuntimeError.
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize", "dtype", dtype, FP8)
    if out is not None:
        _require_agreement(out, name, granularity)
        granularity = out.granularity
    options = (granularity, power_of_two, overflow, profile, transpose, matrices)
    if out is None:
        data, computed = _QUANTIZE((x, scale, channel_scale), options, name, None, stream)
        scale = computed if scale is None else scale
        return ScaledTensor(data, scale, granularity, channel_scale)
    written = (out.data, out.scale if scale is None else None)
    _QUANTIZE((x, scale, channel_scale), options, "", written, stream)
    if scale is None and channel_scale is out.channel_scale:
        return out
    return ScaledTensor(out.data, out.scale if scale is None else scale, granularity, channel_scale)


def quantize_both(
    x: Array,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    stream: StreamLike | None = None,
    *,
    transposed_granularity: str | None = None,
    channel_scale: Array | None = None,
    transposed_channel_scale: Array | None = None,
    offsets: Array | None = None,
    matrices: int | None = None,
) -> tuple[ScaledTensor, ScaledTensor]:
    """quantize(x) and quantize(x, transpose=True), byte for byte, as training needs both: on a GPU
    with block scales from one pass over x. Arguments and errors are those of quantize().

    transposed_granularity: of the transpose, if it is another: "channel" beside "1x128". Weight
        gradients want it for one of their operands; x is read twice then, not three times. Or
        "128x128" beside "1x128": from one read.
    channel_scale, transposed_channel_scale: two-level scales of x's cast, [rows], and of its
        transpose's, [cols], as in quantize(). Of two casts to "128x128" both have them or neither.
    offsets: of an x whose rows are sorted by group: int32 [groups + 1], where each group begins,
        and where the last one ends; rows behind that are not cast. The transpose then has the
        K-group layout: [cols, 128 · (rows // 128 + groups)], where the rows offsets[g] ... of group
        g are the columns from 128 · (offsets[g] // 128 + g) on, and zeros up to the next multiple
        of 128; other columns, and their scales, are not written. So a scale of "1x128" or "128x128"
        is for rows of one group alone; one of "tensor" or "channel" is for all groups. No rows of
        "128x128". Sizes may be 0. On a GPU what offsets hold is not looked at before: no numbers
        make it read or write outside of the arrays.
    matrices: of a stack, as in quantize(); without offsets.
    """
    name = dtype_name("quantize_both", "dtype", dtype, FP8)
    options = (granularity, power_of_two, overflow, profile, transposed_granularity, matrices)
    data, scale, transposed_data, transposed_scale = _QUANTIZE_BOTH(
        (x, channel_scale, transposed_channel_scale, offsets), options, name, None, stream
    )
    of_transpose = transposed_granularity or granularity
    return (
        ScaledTensor(data, scale, granularity, channel_scale),
        ScaledTensor(transposed_data, transposed_scale, of_transpose, transposed_channel_scale),
    )


def quantize_with_columns(
    x: Array,
    columns: str | None = "sums",
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    transposed_granularity: str | None = None,
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    targets: str = "both",
    stream: StreamLike | None = None,
    *,
    channel_scale: Array | None = None,
    transposed_channel_scale: Array | None = None,
    offsets: Array | None = None,
) -> Casts:
    """Casts of x, byte for byte those of quantize() and quantize_both(), and what is to be worked
    out of its columns on the way: of a gradient, that by the bias without another read of it.

    columns: of each column over all rows: "sums", "amax" (the largest magnitudes), "both", or None
        for the casts alone.
    targets: "rows" for quantize(x), "transposed" for quantize(x, transpose=True), "both".
    transposed_granularity, channel_scale, transposed_channel_scale, offsets: as in quantize_both();
        offsets with columns=None alone. Others, and errors: as in quantize().

    Returns (cast, columns), of both targets (rows, transposed, columns), where the last one is
    ColumnReductions (with columns=None: the cast, or a pair). These are float32 [cols]: sums 0 of
    no rows, NaN and infinities by IEEE rules, amax NaN of a column that has one. On a GPU sums are
    added in FP32, on the CPU in FP64 and rounded once; the same input gives the same bits. Rows of
    "channel" alone are read twice on a GPU.
    """
    operation = "quantize_with_columns"
    name = dtype_name(operation, "dtype", dtype, FP8)
    options = (granularity, transposed_granularity, power_of_two, overflow, profile)
    factors = (channel_scale, transposed_channel_scale)
    results = _QUANTIZE_WITH_COLUMNS(
        (x, *factors, offsets), (columns, *options, targets), name, None, stream
    )
    return casts_of(results, granularity, transposed_granularity, *factors)


def convert(
    x: Array, dtype: DTypeLike, overflow: str = "saturate", stream: StreamLike | None = None
) -> Array:
    """Convert element by element, without scales, rounding to nearest even.

    x: float32, float16, bfloat16, e4m3 or e5m2; at least 1 dimension, the last contiguous, and
    leading ones that one stride can walk.
    dtype: any of these. float16 and bfloat16 overflow to infinity, FP8 by the rule `overflow`
    ("saturate" or "nan", as in quantize).
    stream: as in gemm().
    Returns an array of the same shape in the framework of x.
    Raises InvalidArgumentError.
    """
    name = dtype_name("convert", "dtype", dtype)
    return _CONVERT((x,), (overflow,), name, None, stream)[0]


def _require_agreement(out: ScaledTensor, dtype: str, granularity: str) -> None:
    """Of `out` with what else is given; defaults agree with anything."""
    if not isinstance(out, ScaledTensor):
        got = type(out).__qualname__
        raise invalid_argument("quantize", "out", "a ScaledTensor", got)
    held = dtype_name("quantize", "out", out.dtype, FP8)
    if dtype not in ("e4m3", held):
        raise invalid_argument("quantize", "dtype", f"{held}, as is 'out'", repr(dtype))
    if granularity not in ("1x128", out.granularity):
        expected = f"{out.granularity!r}, as is 'out'"
        raise invalid_argument("quantize", "granularity", expected, repr(granularity))


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, scale, _ = inputs
    require_matrix("quantize", "x", x.shape)
    granularity, *_, transpose, matrices = options
    require_stack("quantize", x.shape, matrices)
    shape = transposed_shape(x.shape, matrices) if transpose else x.shape
    if scale is not None:
        return framework.empty(shape, dtype), None
    return allocate_cast(framework, shape, dtype, granularity, matrices)


def _both_codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, *_, offsets = inputs
    operation = "quantize_both"
    granularity, *_, transposed_granularity, matrices = options
    require_matrix(operation, "x", x.shape)
    require_stack(operation, x.shape, matrices)
    *leading, rows = transposed_shape(x.shape, matrices)
    transposed = (*leading, group_columns(operation, rows, offsets))
    of_transpose = transposed_granularity or granularity
    return (
        *allocate_cast(framework, x.shape, dtype, granularity, matrices),
        *allocate_cast(framework, transposed, dtype, of_transpose, matrices),
    )


def _casts_and_columns(
    framework: Framework, inputs: Arrays, options: Options, dtype: str
) -> Arrays:
    x, *_, offsets = inputs
    columns, granularity, transposed_granularity, *_, targets = options
    operation = "quantize_with_columns"
    require_matrix(operation, "x", x.shape)
    of_cast = (targets, granularity, transposed_granularity)
    return allocate_targets(operation, framework, x.shape, dtype, *of_cast, columns, offsets)


def _quantize(
    x: Array,
    given: Array | None,
    channel_scale: Array | None,
    data: Array,
    computed: Array | None,
    granularity: str,
    power_of_two: bool | None,
    overflow: str,
    profile: str,
    transpose: bool,
    matrices: int | None,
    stream: int | None,
) -> None:
    if not isinstance(transpose, bool):
        raise TypeError("the library never sees it")  # which leads to Op's message
    static = given is not None
    scale = given if static else computed
    none = (None, None)
    rows, transposed = (none, (data, scale)) if transpose else ((data, scale), none)
    factors = (None, channel_scale) if transpose else (channel_scale, None)
    options = (granularity, None, power_of_two, overflow, profile, static, matrices, stream)
    try:
        library.quantize(x, *factors, None, *rows, *transposed, None, None, None, *options)
    except InvalidArgumentError as error:  # in the library's words for its two targets
        text = str(error).replace("out.rows", "out").replace("out.transposed", "out")
        text = text.replace("'out.channel_scale'", "'channel_scale'")
        text = text.replace("'out.scale'", "'scale'") if static else text
        raise InvalidArgumentError(text) from None


def _quantize_both(*arguments: Array) -> None:
    *arrays, granularity, power_of_two, overflow, profile = arguments[:-3]
    transposed_granularity, matrices, stream = arguments[-3:]
    options = (granularity, transposed_granularity, power_of_two, overflow, profile, False)
    library.quantize(*arrays, None, None, None, *options, matrices, stream)


def _quantize_with_columns(*arguments: Array) -> None:
    *arrays, _columns, granularity, transposed_granularity = arguments[:-5]
    power_of_two, overflow, profile, _targets, stream = arguments[-5:]
    options = (granularity, transposed_granularity, power_of_two, overflow, profile, False)
    library.quantize(*arrays, *options, None, stream)


_QUANTIZE: Final = Op(
    "quantize",
    quantize.__annotations__,
    results=("out", "out.scale?"),
    allocate=_codes,
    function=lambda: _quantize,
)
_QUANTIZE_BOTH: Final = Op(
    "quantize_both",
    quantize_both.__annotations__,
    results=("out.rows", "out.rows.scale", "out.transposed", "out.transposed.scale"),
    allocate=_both_codes,
    function=lambda: _quantize_both,
)
_QUANTIZE_WITH_COLUMNS: Final = Op(
    "quantize_with_columns",
    quantize_with_columns.__annotations__,
    results=RESULTS,
    allocate=_casts_and_columns,
    function=lambda: _quantize_with_columns,
)
_CONVERT: Final = Op(
    "convert",
    convert.__annotations__,
    results=("out",),
    allocate=lambda framework, inputs, _, dtype: (framework.empty(inputs[0].shape, dtype),),
    function=lambda: library.convert,
)
