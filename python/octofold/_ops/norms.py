"""RMSNorm and LayerNorm in the numbers that they are of, and their gradients."""

from typing import Final, NamedTuple

from .._core.calls import Op
from .._core.errors import require_type, with_errors_in_words_of
from .._core.formats import WIDE, dtype_name
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .cast_sources import Normed, NormStatistics, statistics_of


class NormedRows(NamedTuple):
    """The results of norm().

    y: of the shape and dtype of x.
    norm: what norm_gradient() takes beside the gradient by y.
    """

    y: Array
    norm: NormStatistics


class NormGradients(NamedTuple):
    """The results of norm_gradient(): gradients by the operands of the norm, None for those that it
    did not have.

    dx: that by x, and by the residual: of the shape and dtype of `gradient`. The others are
    float32.
    d_weight, d_bias: [cols].
    d_ada_scale, d_ada_shift: [batch, cols].
    """

    dx: Array
    d_weight: Array | None
    d_bias: Array | None
    d_ada_scale: Array | None
    d_ada_shift: Array | None


def norm(source: Normed, *, stream: StreamLike | None = None) -> NormedRows:
    """Compute a norm that is not to be cast, in one kernel: y, rounded once to the dtype of x.

    source: the norm, and its residual. octofold.ops.cast() of it casts the same y.
    stream: as in gemm().

    Raises InvalidArgumentError, which names the argument.
    """
    require_type("norm", "source", source, Normed, "an ops.Normed")
    inputs, options = source.operands()
    y, *statistics = _NORM(inputs, options, "", None, stream)
    return NormedRows(y, NormStatistics(*statistics))


def norm_gradient(
    gradient: Array,
    x: Array,
    rstd: Array,
    mean: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    kind: str = "rms",
    ada_scale: Array | None = None,
    ada_shift: Array | None = None,
    residual_gradient: Array | None = None,
    stream: StreamLike | None = None,
) -> NormGradients:
    """Compute the gradients of a norm y by all of its operands.

    gradient: that by y, [..., cols] float32, float16 or bfloat16.
    x: the input of the norm, of the shape and dtype of `gradient`: with a residual, the sum.
    rstd, mean: those of the NormStatistics of norm() or cast().
    weight, bias, ada_scale, ada_shift, kind: as ops.Normed had them. For each of these that is
        given here, its gradient is computed.
    residual_gradient: of the shape and dtype of `gradient`, added to dx: the gradient by the sum
        that does not come through the norm, as in a transformer that norms first.
    stream: as in gemm().

    Arithmetic is FP32 (on the CPU FP64), each result rounded once; the same input gives the same
    bits. Raises InvalidArgumentError, which names the argument.
    """
    inputs = gradient, x, rstd, mean, weight, bias, ada_scale, ada_shift, residual_gradient
    dx, *of_operands, _workspace = _NORM_GRADIENT(inputs, (kind,), "", None, stream)
    return NormGradients(dx, *of_operands)


def _gradients(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    gradient, _, _, _, *operands, _ = inputs
    require_matrix("norm_gradient", "gradient", gradient.shape)

    def like(operand: Array | None) -> Array | None:
        return None if operand is None else framework.empty(operand.shape, "float32")

    _, _, ada_scale, ada_shift = operands
    cols = gradient.shape[-1]
    by_batch = ada_shift if ada_scale is None else ada_scale
    batches = 1 if by_batch is None else by_batch.shape[0]
    workspace = None
    if any(operand is not None for operand in operands):
        workspace = framework.empty((_workspace_rows(cols, batches), cols), "float32")
    of_gradient = dtype_name("norm_gradient", "gradient", gradient.dtype, WIDE)
    return framework.empty(gradient.shape, of_gradient), *map(like, operands), workspace


def _workspace_rows(cols: int, batches: int) -> int:
    """norm_workspace_rows() of the library, for torch's symbolic sizes too."""
    spans = 264 * max(1, min(8, 4096 // max(cols, 1)))
    return 2 * max(batches, spans)


# The arguments' names in the library's messages, each with the name that callers know.
NORM_NAMES: Final = {
    "dweight": "d_weight",
    "dbias": "d_bias",
    "norm": "kind",
}


def _rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x = inputs[0]
    require_matrix("norm", "x", x.shape)
    y = framework.empty(x.shape, dtype_name("norm", "x", x.dtype, WIDE))
    return y, *statistics_of("norm", framework, inputs, options)


_NORM: Final = Op(
    "norm",
    {
        "x": Array,
        **dict.fromkeys(("weight", "bias", "residual", "ada_scale", "ada_shift"), Array | None),
        "kind": str,
        "epsilon": float,
    },
    results=("y", "sum?", "rstd", "mean?"),
    allocate=_rows,
    function=lambda: with_errors_in_words_of("norm", library.norm, NORM_NAMES),
)
_NORM_GRADIENT: Final = Op(
    "norm_gradient",
    norm_gradient.__annotations__,
    results=("dx", "d_weight?", "d_bias?", "d_ada_scale?", "d_ada_shift?", "workspace?"),
    allocate=_gradients,
    function=lambda: with_errors_in_words_of("norm_gradient", library.norm_gradient, NORM_NAMES),
)
