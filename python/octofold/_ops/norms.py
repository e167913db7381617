"""RMSNorm and LayerNorm: cast to FP8 as they are worked out, and their gradients."""

from typing import Final, NamedTuple

from .._core.calls import Op
from .._core.dtypes import FP8, WIDE, DTypeLike, dtype_name
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix, row_count
from .._core.scaled_tensor import ScaledTensor
from .._core.streams import StreamLike
from .._core.targets import RESULTS, ColumnReductions, allocate_targets, without_targets


class QuantizedNorm(NamedTuple):
    """What quantize_norm() writes.

    rows: the cast of the norm, [..., cols]; None if not wanted.
    transposed: that of its transpose, [cols, rows]; None if not wanted.
    sum: x + residual, of the shape and dtype of x; None without a residual.
    rstd: 1 / deviation, or 1 / root mean square, of each row: float32 [rows].
    mean: of each row, float32 [rows]; None of an RMSNorm.
    columns: what was to be worked out of the columns of y; None if nothing was.
    """

    rows: ScaledTensor | None
    transposed: ScaledTensor | None
    sum: Array | None
    rstd: Array
    mean: Array | None
    columns: ColumnReductions | None = None


class NormGradients(NamedTuple):
    """What norm_backward() writes: gradients by what was given to quantize_norm(), None where it
    was not given.

    dx: by x, and by the residual: of the shape and dtype of dy. The others are float32.
    dweight, dbias: [cols].
    dscale, dshift: [batch, cols].
    """

    dx: Array
    dweight: Array | None
    dbias: Array | None
    dscale: Array | None
    dshift: Array | None


def quantize_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    *,
    norm: str = "rms",
    epsilon: float = 1e-6,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    targets: str = "rows",
    stream: StreamLike | None = None,
    columns: str | None = None,
) -> QuantizedNorm:
    """quantize(y) of a norm y = norm(x + residual), without y in memory.

    Of each row: n = (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean of squares + epsilon);
    y = n · weight + bias; then y · (1 + scale) + shift. What is left out changes nothing.

    x: [..., cols] float32, float16 or bfloat16, as in quantize().
    weight, bias: [cols], contiguous, of the dtype of x or float32.
    residual: of the shape and dtype of x. It is added first; the sum is rounded to this dtype, and
        is a result too.
    scale, shift: [batch, cols], of the dtype of x or float32, as adaptive norms of diffusion
        transformers have them. `batch` divides the rows; those of one batch follow each other.
    norm: "rms" or "layer".
    epsilon: at least 0.
    dtype, granularity, power_of_two, overflow, profile, stream: as in quantize().
    targets: "rows" for the cast of y, "transposed" for that of its transpose, "both".
    columns: what to work out of each column of y, as in quantize_with_columns(): "sums", "amax" or
        "both".

    Statistics are float32, y is worked out in FP32 and rounded to the dtype of x once; codes and
    scales are those of quantize(y) on the same device, bit for bit. (Statistics of CPU and GPU may
    differ in their last bits.) On a GPU "channel" and "1x128" scales of rows alone take one kernel,
    the others, and `columns`, one more than the cast. NaN and infinities follow IEEE rules. Nothing
    is differentiated, as in quantize(): norm_backward() has the gradients.
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize_norm", "dtype", dtype, FP8)
    options = (norm, epsilon, granularity, power_of_two, overflow, profile, targets, columns)
    inputs = (x, weight, bias, residual, scale, shift)
    results = _QUANTIZE_NORM(inputs, options, name, None, stream)
    data, data_scale, transposed, transposed_scale, sums, amax, _, total, rstd, mean = results
    return QuantizedNorm(
        None if data is None else ScaledTensor(data, data_scale, granularity),
        None if transposed is None else ScaledTensor(transposed, transposed_scale, granularity),
        total,
        rstd,
        mean,
        None if columns is None else ColumnReductions(sums, amax),
    )


def norm_backward(
    dy: Array,
    x: Array,
    rstd: Array,
    mean: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual_gradient: Array | None = None,
    *,
    norm: str = "rms",
    stream: StreamLike | None = None,
) -> NormGradients:
    """The gradients of a norm y by everything that made it.

    dy: by y, [..., cols] float32, float16 or bfloat16.
    x: what was normed, of the shape and dtype of dy: with a residual, the sum.
    rstd, mean: as quantize_norm() gave them.
    weight, bias, scale, shift, norm: as they were given to quantize_norm(). For each of these that
        is given here, its gradient is worked out.
    residual_gradient: of the shape and dtype of dy, added to dx: the gradient by the sum that does
        not come through the norm, as in a transformer that norms first.
    stream: as in gemm().

    Arithmetic is FP32 (on the CPU FP64), each result rounded once; the same input gives the same
    bits. Raises InvalidArgumentError that names the argument.
    """
    inputs = (dy, x, rstd, mean, weight, bias, scale, shift, residual_gradient)
    dx, *of_operands, _workspace = _NORM_BACKWARD(inputs, (norm,), "", None, stream)
    return NormGradients(dx, *of_operands)


def _normed(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, _, _, residual, _, _ = inputs
    require_matrix("quantize_norm", "x", x.shape)
    norm, _, granularity, *_, targets, columns = options
    of_x = dtype_name("quantize_norm", "x", x.dtype, WIDE)
    rows = (row_count(x.shape),)
    return (
        *allocate_targets(
            "quantize_norm", framework, x.shape, dtype, targets, granularity, columns=columns
        ),
        None if residual is None else framework.empty(x.shape, of_x),
        framework.empty(rows, "float32"),
        framework.empty(rows, "float32") if norm == "layer" else None,
    )


def _gradients(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    dy, _, _, _, *operands, _ = inputs
    require_matrix("norm_backward", "dy", dy.shape)

    def like(operand: Array | None) -> Array | None:
        return None if operand is None else framework.empty(operand.shape, "float32")

    _, _, scale, shift = operands
    cols = dy.shape[-1]
    by_batch = shift if scale is None else scale
    batches = 1 if by_batch is None else by_batch.shape[0]
    workspace = None
    if any(operand is not None for operand in operands):
        workspace = framework.empty((_workspace_rows(cols, batches), cols), "float32")
    of_dy = dtype_name("norm_backward", "dy", dy.dtype, WIDE)
    return framework.empty(dy.shape, of_dy), *map(like, operands), workspace


def _workspace_rows(cols: int, batches: int) -> int:
    """norm_workspace_rows() of the library, for torch's symbolic sizes too."""
    spans = 264 * max(1, min(8, 4096 // max(cols, 1)))
    return 2 * max(batches, spans)


_QUANTIZE_NORM: Final = Op(
    "quantize_norm",
    quantize_norm.__annotations__,
    results=(*RESULTS, "sum?", "rstd", "mean?"),
    allocate=_normed,
    function=lambda: without_targets(library.quantize_norm),
)
_NORM_BACKWARD: Final = Op(
    "norm_backward",
    norm_backward.__annotations__,
    results=("dx", "dweight?", "dbias?", "dscale?", "dshift?", "workspace?"),
    allocate=_gradients,
    function=lambda: library.norm_backward,
)
