"""The dot product of two vectors."""

from typing import Final

from .._core.arrays import scratch
from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework, StreamLike
from .._core.ops import Arrays, Options
from .._core.scaled_tensor import ScaledTensor, parts_of


def dot(
    a: Array | ScaledTensor,
    b: Array | ScaledTensor,
    *,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute Σ a[i] · b[i], accumulated in FP32; 0 for empty vectors.

    a, b: [K], or with leading dimensions of 1: ScaledTensors, or arrays of float32, float16,
        bfloat16, e4m3 or e5m2, in any pair; contiguous. A vector's scale is that of a matrix of one
        row (see scale_shape()): one element for "tensor" and "channel", [ceil(K / 128)] for
        "1x128", [1, ceil(K / 128)] for "128x128".
    out: where to write: float32, one element. As in gemm(), nothing may require a gradient.
    stream: as in gemm().

    Codes become numbers exactly. Products are added in FP32 and in a fixed order: the same input
    gives the same bits, on GPUs with any number of multiprocessors. Block scales multiply the sums
    of their blocks, other scales the whole sum. NaN and infinities follow IEEE rules. There is no
    gradient, as in gemm().

    Returns `out`, or a float32 array without dimensions in the framework of a.
    Raises InvalidArgumentError, which names the argument.
    """
    a_data, a_scale, a_granularity = parts_of(a)
    b_data, b_scale, b_granularity = parts_of(b)
    inputs = (a_data, a_scale, b_data, b_scale)
    options = (a_granularity, b_granularity)
    if out is None:
        return _DOT(inputs, options, "", None, stream)[0]
    workspace = scratch("dot", "out", out, (_workspace_size(_length(a_data)),), stream)
    return _DOT(inputs, options, "", (out, workspace), stream)[0]


def _length(a: Array) -> int:
    if not hasattr(a, "shape") or len(a.shape) == 0:
        got = f"{tuple(a.shape)}" if hasattr(a, "shape") else repr(a)
        raise invalid_argument("dot", "a", "a vector [K]", got)
    size: int = a.shape[-1]
    return size


def _workspace_size(size: int) -> int:
    """dot_workspace_size() of the library, for torch's symbolic sizes too."""
    span = 8192 * (size // (8192 * 1024) + 1)
    return (size + span - 1) // span


def _sum(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    workspace = (_workspace_size(_length(inputs[0])),)
    return framework.empty((), "float32"), framework.empty(workspace, "float32")


_DOT: Final = Op("dot", dot.__annotations__, ("out", "workspace"), _sum)
