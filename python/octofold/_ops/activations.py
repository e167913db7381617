"""Activations and their gradients, cast to FP8 as they are worked out."""

from collections.abc import Sequence
from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, WIDE, DTypeLike, dtype_name
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike
from .._core.targets import RESULTS, Casts, allocate_targets, casts_of, without_targets

GATED: Final = ("swiglu", "geglu-tanh", "geglu")


def quantize_activation(
    x: Array | ScaledTensor,
    activation: str = "swiglu",
    layout: str = "halves",
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    transposed_granularity: str | None = None,
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    x_dtype: str | None = None,
    targets: str = "rows",
    stream: StreamLike | None = None,
    *,
    columns: str | None = None,
    offsets: Array | None = None,
) -> Casts:
    """quantize(activation(x)), without activation(x) in memory.

    x: [..., 2·cols] of a gated activation, else [..., cols]; float32, float16 or bfloat16, as in
        quantize(). The activation is worked out in FP32 and rounded to this dtype once. Or a
        ScaledTensor, of any granularity: the same as of x.dequantize(x_dtype), bit for bit.
    activation: "swiglu" (silu(gate) · up), "geglu-tanh", "geglu" (with the error function), or
        plain: "silu", "gelu", "gelu-tanh", "relu-squared".
    layout: where gate and up are: "halves" of the last dimension, gate first, or "interleaved".
    dtype, granularity, power_of_two, overflow, profile, stream: as in quantize().
    transposed_granularity: as in quantize_both().
    x_dtype: "bfloat16" (None), "float16" or "float32", to which the values of a ScaledTensor are
        rounded; None for an array, which has a dtype.
    targets: "rows" for the cast of the activation, [..., cols]; "transposed" for that of its
        transpose, [cols, rows]; "both" for a pair of them from one read of x.

    columns: what to work out of each column of the activation on the way, of all rows: "sums",
        "amax" (the largest magnitudes) or "both", as in quantize_with_columns().
    offsets: of rows that are sorted by group, as in quantize_both(): the layout of the transpose.
        Not beside `columns`.

    Returns a ScaledTensor, or a pair; with `columns` a tuple of these, followed by
    ColumnReductions: (cast, columns) or (rows, transposed, columns). NaN and infinities follow IEEE
    rules; at -inf SiLU and GELU are NaN. Nothing is differentiated, as in quantize().
    Raises InvalidArgumentError that names the argument.
    """
    operation = "quantize_activation"
    name = dtype_name(operation, "dtype", dtype, FP8)
    data, scale, x_granularity = _parts(operation, x)
    if x_dtype is not None:
        if scale is None:
            raise invalid_argument(
                operation, "x_dtype", "None for an array, which has one", x_dtype
            )
        x_dtype = dtype_name(operation, "x_dtype", x_dtype, WIDE)
    options = (
        x_granularity,
        activation,
        layout,
        granularity,
        transposed_granularity,
        power_of_two,
        overflow,
        profile,
        x_dtype,
        targets,
        columns,
    )
    results = _ACTIVATION((data, scale, offsets), options, name, None, stream)
    return casts_of(results, granularity, transposed_granularity)


def quantize_activation_gradient(
    gradient: Array,
    x: Array | ScaledTensor,
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
    offsets: Array | None = None,
) -> Casts:
    """The gradient by x of activation(x), cast: what the linear layer before it goes back with.

    gradient: by activation(x), [..., cols], of the dtype of x. Of a ScaledTensor x float32, float16
        or bfloat16: the result is that of x.dequantize() in this dtype, bit for bit.
    Other arguments and errors are those of quantize_activation(); the result has the shape of x,
    or of its transpose. With columns="sums", the sums are the gradient by the bias of that layer.
    """
    operation = "quantize_activation_gradient"
    name = dtype_name(operation, "dtype", dtype, FP8)
    data, scale, x_granularity = _parts(operation, x)
    options = (
        x_granularity,
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
    results = _GRADIENT((gradient, data, scale, offsets), options, name, None, stream)
    return casts_of(results, granularity, transposed_granularity)


def _parts(operation: str, x: Array | ScaledTensor) -> tuple[Array, Array | None, str | None]:
    """Inputs and option of an op."""
    if not isinstance(x, ScaledTensor):
        return x, None, None
    require_one_level(operation, "x", x)
    return x.data, x.scale, x.granularity


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
    x, _, offsets = inputs
    require_matrix("quantize_activation", "x", x.shape)
    shape = _activation_shape(x, options[1])
    return _targets("quantize_activation", framework, shape, dtype, options, offsets)


def _gradient_codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    _, x, _, offsets = inputs
    operation = "quantize_activation_gradient"
    require_matrix(operation, "x", x.shape)
    return _targets(operation, framework, x.shape, dtype, options, offsets)


def _targets(
    operation: str,
    framework: Framework,
    shape: Sequence[int],
    dtype: str,
    options: Options,
    offsets: Array | None,
) -> Arrays:
    _, _, _, granularity, transposed_granularity, *_, targets, columns = options
    return allocate_targets(
        operation,
        framework,
        shape,
        dtype,
        targets,
        granularity,
        transposed_granularity,
        columns,
        offsets,
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
