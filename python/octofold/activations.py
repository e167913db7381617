"""Activations and their gradients, cast to FP8 as they are worked out."""

from collections.abc import Sequence
from typing import Final

from ._core.dtypes import FP8, DTypeLike, dtype_name
from ._core.frameworks import Array, Framework
from ._core.ops import Arrays, Op, Options, require_matrix
from ._core.streams import StreamLike
from ._core.targets import RESULTS, Casts, allocate_targets, casts_of, without_targets
from ._library import library
from .errors import invalid_argument

GATED: Final = ("swiglu", "geglu-tanh", "geglu")


def quantize_activation(
    x: Array,
    activation: str = "swiglu",
    layout: str = "halves",
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    transposed_granularity: str | None = None,
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    targets: str = "rows",
    stream: StreamLike | None = None,
    *,
    columns: str | None = None,
) -> Casts:
    """quantize(activation(x)), without activation(x) in memory.

    x: [..., 2·cols] of a gated activation, else [..., cols]; float32, float16 or bfloat16, as in
        quantize(). The activation is worked out in FP32 and rounded to this dtype once.
    activation: "swiglu" (silu(gate) · up), "geglu-tanh", "geglu" (with the error function), or
        plain: "silu", "gelu", "gelu-tanh", "relu-squared".
    layout: where gate and up are: "halves" of the last dimension, gate first, or "interleaved".
    dtype, granularity, power_of_two, overflow, profile, stream: as in quantize().
    transposed_granularity: as in quantize_both().
    targets: "rows" for the cast of the activation, [..., cols]; "transposed" for that of its
        transpose, [cols, rows]; "both" for a pair of them from one read of x.

    columns: what to work out of each column of the activation on the way, of all rows: "sums",
        "amax" (the largest magnitudes) or "both", as in quantize_with_columns().

    Returns a ScaledTensor, or a pair; with `columns` a tuple of these, followed by
    ColumnReductions: (cast, columns) or (rows, transposed, columns). NaN and infinities follow IEEE
    rules; at -inf SiLU and GELU are NaN. Nothing is differentiated, as in quantize().
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize_activation", "dtype", dtype, FP8)
    options = (
        activation,
        layout,
        granularity,
        transposed_granularity,
        power_of_two,
        overflow,
        profile,
        targets,
        columns,
    )
    return casts_of(
        _ACTIVATION((x,), options, name, None, stream), granularity, transposed_granularity
    )


def quantize_activation_gradient(
    gradient: Array,
    x: Array,
    activation: str = "swiglu",
    layout: str = "halves",
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    transposed_granularity: str | None = None,
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    targets: str = "rows",
    stream: StreamLike | None = None,
    *,
    columns: str | None = None,
) -> Casts:
    """The gradient by x of activation(x), cast: what the linear layer before it goes back with.

    gradient: by activation(x), [..., cols], of the dtype of x.
    Other arguments and errors are those of quantize_activation(); the result has the shape of x,
    or of its transpose. With columns="sums", the sums are the gradient by the bias of that layer.
    """
    name = dtype_name("quantize_activation_gradient", "dtype", dtype, FP8)
    options = (
        activation,
        layout,
        granularity,
        transposed_granularity,
        power_of_two,
        overflow,
        profile,
        targets,
        columns,
    )
    return casts_of(
        _GRADIENT((gradient, x), options, name, None, stream), granularity, transposed_granularity
    )


def _activation_shape(x: Array, activation: str) -> Sequence[int]:
    shape: Sequence[int] = x.shape
    *leading, cols = shape
    if activation not in GATED:
        return shape
    if cols % 2 != 0:
        raise invalid_argument(
            "quantize_activation",
            "x",
            f"an even last dimension, gate and up, as {activation} takes them",
            f"{tuple(shape)}",
        )
    return (*leading, cols // 2)


def _activation_codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    (x,) = inputs
    require_matrix("quantize_activation", "x", x.shape)
    shape = _activation_shape(x, options[0])
    return _targets("quantize_activation", framework, shape, dtype, options)


def _gradient_codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    _, x = inputs
    operation = "quantize_activation_gradient"
    require_matrix(operation, "x", x.shape)
    return _targets(operation, framework, x.shape, dtype, options)


def _targets(
    operation: str, framework: Framework, shape: Sequence[int], dtype: str, options: Options
) -> Arrays:
    _, _, granularity, transposed_granularity, *_, targets, columns = options
    return allocate_targets(
        operation,
        framework,
        shape,
        dtype,
        targets,
        granularity,
        transposed_granularity,
        columns,
    )


_ACTIVATION: Final = Op(
    "quantize_activation",
    quantize_activation.__annotations__,
    results=RESULTS,
    allocate=_activation_codes,
    function=lambda: without_targets(library.quantize_activation),
)
_GRADIENT: Final = Op(
    "quantize_activation_gradient",
    quantize_activation_gradient.__annotations__,
    results=RESULTS,
    allocate=_gradient_codes,
    function=lambda: without_targets(library.quantize_activation_gradient),
)
