"""The sources of a cast: a matrix in memory, or one that is computed on the way and is nowhere in
memory.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.formats import WIDE, dtype_name
from .._core.frameworks import Array, Framework
from .._core.ops import Arrays, Options, require_matrix, row_count
from .._core.scaled_tensor import ScaledTensor, parts_of
from .cast_row import cast_row

GATED: Final = ("swiglu", "geglu-tanh", "geglu", "swiglu-oss")


class NormStatistics(NamedTuple):
    """The statistics that norm() and a cast of a norm compute beside it, for norm_gradient().

    sum: x + residual, of the shape and dtype of x; None without a residual.
    rstd: 1 / deviation, or 1 / root mean square, of each row: float32 [rows].
    mean: that of each row, float32 [rows]; None for an RMSNorm.
    """

    sum: Array | None
    rstd: Array
    mean: Array | None


class Source:
    """A source of cast() that is no array in memory."""

    row: ClassVar[Op]

    def operands(self) -> tuple[Arrays, Options]:
        """The inputs and options of the source's row."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Activated(Source):
    """activation(x), [..., cols].

    x: [..., 2·cols] for a gated activation, else [..., cols]; float32, float16 or bfloat16, columns
        contiguous. The activation is computed in FP32 and rounded to this dtype once. x may also be
        a ScaledTensor of any granularity; the result is that of x.dequantize(dtype), bit for bit.
    activation: "swiglu" (silu(gate) · up), "geglu-tanh", "geglu" (with the error function),
        "swiglu-oss" (gpt-oss's, which clamps both and takes up + 1), or one that is not gated:
        "silu", "gelu", "gelu-tanh", "relu-squared".
    layout: where gate and up are: "halves" of the last dimension, gate first, or "interleaved".
    dtype: "bfloat16" (None), "float16" or "float32", to which the values of a ScaledTensor are
        rounded; None for an array, which has a dtype.

    NaN and infinities follow IEEE rules; at -inf SiLU and GELU are NaN.
    """

    x: Array | ScaledTensor
    activation: str = "swiglu"
    _: KW_ONLY
    layout: str = "halves"
    dtype: Any = None

    def operands(self) -> tuple[Arrays, Options]:
        data, scale, granularity = parts_of(self.x)
        dtype = self.dtype
        if dtype is not None:
            if scale is None:
                expected = "None for an array, which has one"
                raise invalid_argument("cast", "source.dtype", expected, repr(dtype))
            dtype = dtype_name("cast", "source.dtype", dtype, WIDE)
        return (data, scale), (granularity, self.activation, self.layout, dtype)


@dataclass(frozen=True, eq=False)
class ActivationGradient(Source):
    """The gradient by x of activation(x), of the shape of x. The backward pass of the linear layer
    before the activation takes it; with columns="sums" the sums are the gradient by that layer's
    bias.

    gradient: that by activation(x), [..., cols], of the dtype of x. For a ScaledTensor x it is
        float32, float16 or bfloat16; the result is that of x.dequantize() in this dtype, bit for
        bit.
    x, activation, layout: as in Activated.
    """

    gradient: Array
    x: Array | ScaledTensor
    activation: str = "swiglu"
    _: KW_ONLY
    layout: str = "halves"

    def operands(self) -> tuple[Arrays, Options]:
        data, scale, granularity = parts_of(self.x)
        return (self.gradient, data, scale), (granularity, self.activation, self.layout)


@dataclass(frozen=True, eq=False)
class Normed(Source):
    """A norm y = norm(x + residual), [..., cols].

    For each row, n = (x - mean) / sqrt(variance + epsilon), or x / sqrt(mean of squares + epsilon);
    y = n · weight + bias; then y · (1 + ada_scale) + ada_shift. Operands that are left out change
    nothing.

    x: [..., cols] float32, float16 or bfloat16, columns contiguous.
    weight, bias: [cols], contiguous, of the dtype of x or float32.
    kind: "rms" or "layer".
    epsilon: at least 0.
    residual: of the shape and dtype of x. It is added first; the sum is rounded to this dtype, and
        is a result too.
    ada_scale, ada_shift: [batch, cols], of the dtype of x or float32: the vectors of the adaptive
        norms (AdaLN) of diffusion transformers. `batch` divides the rows; those of one batch follow
        each other.

    Statistics are float32, y is computed in FP32 and rounded to the dtype of x once. (Statistics on
    CPU and GPU may differ in their last bits.) On a GPU rows alone with "channel" and "1x128"
    scales take one kernel; other targets, and `columns`, take one more than the cast.
    """

    x: Array
    weight: Array | None = None
    bias: Array | None = None
    _: KW_ONLY
    kind: str = "rms"
    epsilon: float = 1e-6
    residual: Array | None = None
    ada_scale: Array | None = None
    ada_shift: Array | None = None

    def operands(self) -> tuple[Arrays, Options]:
        vectors = self.weight, self.bias, self.residual, self.ada_scale, self.ada_shift
        return (self.x, *vectors), (self.kind, self.epsilon)


@dataclass(frozen=True, eq=False)
class Gathered(Source):
    """The rows x[sources // slots], [rows, cols], as experts need their tokens.

    x: [..., cols] float32, float16 or bfloat16, columns contiguous: the rows of T tokens.
    sources: int32 [rows], contiguous: the flat place, token · slots + slot, of each row that is
        cast. -1 (and, on a GPU, any number outside of [0, T · slots)) stands for no row: the cast
        of rows is not written there, and in the transpose it counts as zeros.
    slots: the number of places of a row of x, at least 1: to how many experts a token goes.
    factors: float32 [..., slots], contiguous. Rows are multiplied by them in FP32 and rounded to
        the dtype of x before they are cast: the rows x[sources // slots] * factors.flat[sources].
    transposed_factors: the same, but of the transpose alone, without `factors` and without
        `columns`: experts' gradients by their weights take the one where others take the other.
        With `offsets`, rows that belong to no group have -1 as their source.
    """

    x: Array
    sources: Array
    _: KW_ONLY
    slots: int = 1
    factors: Array | None = None
    transposed_factors: Array | None = None

    def operands(self) -> tuple[Arrays, Options]:
        factors = self.factors, self.transposed_factors
        return (self.x, self.sources, *factors), (self.slots,)


def _plain_shape(inputs: Arrays, options: Options) -> Sequence[int]:
    shape: Sequence[int] = inputs[0].shape
    require_matrix("cast", "x", shape)
    return shape


def _activated_shape(inputs: Arrays, options: Options) -> Sequence[int]:
    shape = _plain_shape(inputs, options)
    activation = options[1]
    *leading, cols = shape
    if activation not in GATED:
        return shape
    if cols % 2 != 0:
        expected = f"an even last dimension, gate and up, as {activation} takes them"
        raise invalid_argument("cast", "x", expected, f"{tuple(shape)}")
    return (*leading, cols // 2)


def _gradient_shape(inputs: Arrays, options: Options) -> Sequence[int]:
    return _plain_shape(inputs[1:], options)


def _gathered_shape(inputs: Arrays, options: Options) -> Sequence[int]:
    x, sources, *_ = inputs
    require_matrix("cast", "x", x.shape)
    if len(sources.shape) != 1:
        raise invalid_argument("cast", "sources", "int32 [rows]", f"{tuple(sources.shape)}")
    return sources.shape[0], x.shape[-1]


def statistics_of(operation: str, framework: Framework, inputs: Arrays, options: Options) -> Arrays:
    """Memory for those of a norm, by its operands()."""
    x, _, _, residual, *_ = inputs
    rows = (row_count(x.shape),)
    of_x = dtype_name(operation, "x", x.dtype, WIDE)
    return (
        None if residual is None else framework.empty(x.shape, of_x),
        framework.empty(rows, "float32"),
        framework.empty(rows, "float32") if options[0] == "layer" else None,
    )


PLAIN: Final = cast_row("plain", {"x": Array, "used": Array | None}, _plain_shape)
Activated.row = cast_row(
    "activated",
    {"x": Array | ScaledTensor},
    _activated_shape,
    {"activation": str, "layout": str, "x.dtype": str | None},
)
ActivationGradient.row = cast_row(
    "activation_gradient",
    {"gradient": Array, "x": Array | ScaledTensor},
    _gradient_shape,
    {"activation": str, "layout": str},
)
Normed.row = cast_row(
    "normed",
    {
        "x": Array,
        **dict.fromkeys(("weight", "bias", "residual", "ada_scale", "ada_shift"), Array | None),
    },
    _plain_shape,
    {"norm": str, "epsilon": float},
    ("norm.sum?", "norm.rstd", "norm.mean?"),
    partial(statistics_of, "cast"),
)
Gathered.row = cast_row(
    "gathered",
    {
        "x": Array,
        "sources": Array,
        "factors": Array | None,
        "transposed_factors": Array | None,
    },
    _gathered_shape,
    {"slots": int},
)
