"""The cast of an array to FP8, as most callers want it."""

import functools
from collections.abc import Callable
from typing import Any, Final

from .._core.calls import Op
from .._core.errors import InvalidArgumentError, in_words_of
from .._core.formats import FormatLike, format_of
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import library
from .._core.ops import Arrays, Options, quick_scale_shape, require_matrix, require_stack
from .._core.scaled_tensor import ScaledTensor
from .cast import require_format


def quantize(
    x: Array,
    format: FormatLike = "1x128",
    *,
    scale: Array | None = None,
    matrices: int | None = None,
    out: ScaledTensor | None = None,
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """Cast a matrix to FP8 with one FP32 scale for each unit of its granularity.

    x: [..., cols] float32, float16 or bfloat16; columns contiguous, any row stride. Leading
        dimensions are more rows, if one stride leads through them.
    format: a Format, or words such as "128x128", "e5m2 channel" or "1x128 torchao", each a dtype, a
        granularity or a rule.
    scale: static scales, float32, in the shape that ops.scale_shape() gives for x: x is cast with
        them, and the result holds them. None: each unit's scale is computed.
    matrices: the number of matrices if x is a stack of them, one below another, as the weights of
        experts [experts, out, in] are; a divisor of the rows. Each is cast as if it were alone, by
        one launch on a GPU. Scales are then [matrices] for "tensor" and [matrices, ...] for
        "128x128" (see ops.scale_shape()), as grouped_gemm() takes them.
    out: where to write, of the dtype and granularity of the format: codes and scales (with `scale`:
        only the codes). As in gemm(), nothing may require a gradient.
    stream: as in gemm().

    Returns `out` (with given scales: its codes and these), or a ScaledTensor in the framework of x.
    On a GPU rows of codes begin at multiples of 32 bytes, and 1x128 scales have the strides (1,
    rows rounded up to a multiple of 4): so gemm() reads them fastest. NaN and infinities follow
    IEEE rules. There is no gradient: backward through it raises RuntimeError. ops.cast() has the
    transpose, sums of columns, and casts of what is not in memory.
    Raises InvalidArgumentError, which names the argument.
    """
    format = format_of("quantize", format)
    options = (format.granularity, *format.options, matrices)
    if out is None:
        data, computed = _QUANTIZE((x, scale), options, format.dtype, None, stream)
        return ScaledTensor(data, computed if scale is None else scale, format.granularity)
    require_format("quantize", "out", out, format)
    written = (out.data, out.scale if scale is None else None)
    _QUANTIZE((x, scale), options, "", written, stream)
    return out if scale is None else ScaledTensor(out.data, scale, format.granularity)


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, scale = inputs
    granularity, *_, matrices = options
    require_matrix("quantize", "x", x.shape)
    require_stack("quantize", x.shape, matrices)
    data = framework.empty_codes(x.shape, dtype)
    if scale is not None:
        return data, None
    shape = quick_scale_shape(granularity, x.shape, matrices)
    return data, framework.empty_scale(shape, granularity)


def _function() -> Callable[..., None]:
    """The library's cast to rows, whose errors are in the words of quantize()."""
    function = library.quantize

    @functools.wraps(function)
    def call(x: Array, given: Array | None, *more: Any) -> None:
        try:
            function(x, given, *more)
        except InvalidArgumentError as error:
            scale = "out.scale" if given is None else "scale"
            names = {"out.rows": "out", "out.rows.scale": scale}
            raise in_words_of("quantize", error, names) from None

    return call


_QUANTIZE: Final = Op(
    "quantize",
    {
        "x": Array,
        "scale": Array | None,
        "granularity": str,
        "power_of_two": bool | None,
        "overflow": str,
        "rule": str,
        "matrices": int | None,
    },
    results=("out", "out.scale?"),
    allocate=_codes,
    function=_function,
)
