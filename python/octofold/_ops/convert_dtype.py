"""Conversion of numbers from one dtype to another, element by element."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import DTypeLike, dtype_name
from .._core.frameworks import Array
from .._core.library import library
from .._core.streams import StreamLike


def convert_dtype(
    x: Array, dtype: DTypeLike, *, overflow: str = "saturate", stream: StreamLike | None = None
) -> Array:
    """Convert element by element, without scales, rounding to nearest even.

    x: float32, float16, bfloat16, e4m3 or e5m2; at least 1 dimension, the last contiguous, and
    leading ones that one stride can walk.
    dtype: any of these. float16 and bfloat16 overflow to infinity, FP8 by the rule `overflow`
    ("saturate" or "nan", as in Format).
    stream: as in gemm().
    Returns an array of the same shape in the framework of x.
    Raises InvalidArgumentError.
    """
    name = dtype_name("convert_dtype", "dtype", dtype)
    return _CONVERT((x,), (overflow,), name, None, stream)[0]


_CONVERT: Final = Op(
    "convert_dtype",
    convert_dtype.__annotations__,
    results=("out",),
    allocate=lambda framework, inputs, _, dtype: (framework.empty(inputs[0].shape, dtype),),
    function=lambda: library.convert_dtype,
)
