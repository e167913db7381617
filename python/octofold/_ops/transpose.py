"""The transpose of FP8 codes."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, dtype_name
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.streams import StreamLike


def transpose(x: Array, *, stream: StreamLike | None = None) -> Array:
    """The transpose of a matrix of FP8 codes, or of each matrix of a stack, in memory of its own:
    what `x.mT` shows, with the contiguous columns that operations need.

    x: e4m3 or e5m2 [..., rows, cols], the last dimension contiguous, and leading ones that one
    stride can walk. Of a ScaledTensor its `data`; ScaledTensor.T has the scales that belong to it.
    stream: as in gemm().
    Returns an array [..., cols, rows] of the same dtype in the framework of x.
    Raises InvalidArgumentError.
    """
    return _TRANSPOSE((x,), (), dtype_name("transpose", "x", x.dtype, FP8), None, stream)[0]


def _transposed(framework: Framework, inputs: Arrays, _: Options, dtype: str) -> Arrays:
    require_matrix("transpose", "x", inputs[0].shape)
    *leading, rows, cols = inputs[0].shape
    return (framework.empty_codes((*leading, cols, rows), dtype),)


_TRANSPOSE: Final = Op(
    "transpose",
    transpose.__annotations__,
    results=("out",),
    allocate=_transposed,
    function=lambda: library.transpose,
)
