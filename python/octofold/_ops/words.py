"""Codes in other forms: converted from one dtype to another, transposed, and packed as words, FP8
and FP16 numbers in 32 bits."""

from typing import Final

import numpy as np

from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.formats import FP8, NUMPY_DTYPES, WIDE, DTypeLike, dtype_name
from .._core.frameworks import Array, Framework, StreamLike, is_torch
from .._core.ops import Arrays, Options, require_matrix


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
    ("out",),
    lambda framework, inputs, _, dtype: (framework.empty(inputs[0].shape, dtype),),
)


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


_TRANSPOSE: Final = Op("transpose", transpose.__annotations__, ("out",), _transposed)


_FORMATS: Final = ("e4m3", "e5m2", "float16")
_CONTAINERS: Final = ("int32", "uint32", "float32")


def pack(
    x: Array, format: str, *, overflow: str = "saturate", stream: StreamLike | None = None
) -> Array:
    """Pack numbers into 32-bit words, rounded to nearest even: convert_dtype(), seen through
    as_words().

    x: [..., K] float32, float16 or bfloat16, a NumPy array or a torch tensor; at least 1 dimension,
        the last contiguous, and leading ones that one stride leads through.
    format: "e5m2" or "e4m3", four numbers to a word, or "float16", two. K is a multiple of that.
    overflow: for FP8 "saturate" or "nan", as in convert_dtype(). float16 overflows to infinity.
    stream: as in gemm().

    Returns int32 [..., K / 4] or [..., K / 2], the first number of a word in its lowest bits. NaN
    stays NaN; subnormal results are exact. There is no gradient, as in convert_dtype().
    Raises InvalidArgumentError, which names the argument.
    """
    name = dtype_name("pack", "format", format, _FORMATS)
    _require_array("pack", "x", x)
    dtype_name("pack", "x", x.dtype, WIDE)
    numbers = convert_dtype(x, name, overflow=overflow, stream=stream)
    return _viewed("pack", "x", numbers, "int32", name)


def unpack(
    words: Array, format: str, *, dtype: DTypeLike = "float32", stream: StreamLike | None = None
) -> Array:
    """Unpack the numbers of 32-bit words, exact in every dtype that holds them: convert_dtype() of
    from_words().

    words: [..., K] int32, uint32 or float32, as in from_words(); leading dimensions that one stride
        leads through.
    format: "e5m2", "e4m3" or "float16".
    dtype: float32, float16 or bfloat16, which rounds FP16 to nearest even.
    stream: as in gemm().

    Returns [..., K · 4] or [..., K · 2] in the framework of `words`.
    Raises InvalidArgumentError, which names the argument.
    """
    name = dtype_name("unpack", "format", format, _FORMATS)
    to = dtype_name("unpack", "dtype", dtype, WIDE)
    return convert_dtype(_numbers("unpack", words, name), to, stream=stream)


def as_words(tensor: Array) -> Array:
    """View FP8 or FP16 numbers as packed words of the same memory.

    tensor: [..., K] e4m3, e5m2 or float16, a NumPy array or a torch tensor. The last dimension is
        contiguous; K, and the strides of other dimensions, are multiples of the numbers of a word;
        the first number lies at a multiple of 4 bytes.

    Returns int32 [..., K / 4], for float16 [..., K / 2].
    Raises InvalidArgumentError, which says what keeps it from being words; a copy of it can be.
    """
    _require_array("as_words", "tensor", tensor)
    name = dtype_name("as_words", "tensor", tensor.dtype, _FORMATS)
    return _viewed("as_words", "tensor", tensor, "int32", name)


def from_words(words: Array, format: str) -> Array:
    """View packed words as the numbers that they hold, in the same memory.

    words: [..., K] int32, uint32, or float32 with their bits (as others keep them), a NumPy array
        or a torch tensor; the last dimension contiguous.
    format: "e5m2", "e4m3" or "float16".

    Returns [..., K · 4] of this dtype, for float16 [..., K · 2].
    Raises InvalidArgumentError, which names the argument.
    """
    return _numbers("from_words", words, dtype_name("from_words", "format", format, _FORMATS))


def _numbers(operation: str, words: Array, format: str) -> Array:
    _require_array(operation, "words", words)
    container = str(words.dtype).removeprefix("torch.")
    if container not in _CONTAINERS:
        expected = f"words in {', '.join(_CONTAINERS[:-1])} or {_CONTAINERS[-1]}"
        raise invalid_argument(operation, "words", expected, container)
    return _viewed(operation, "words", words, format, format)


def _require_array(operation: str, argument: str, array: Array) -> None:
    if not (is_torch(array) or isinstance(array, np.ndarray)):
        got = f"{type(array).__module__}.{type(array).__qualname__}"
        raise invalid_argument(operation, argument, "a NumPy array or a torch tensor", got)


def _viewed(operation: str, argument: str, array: Array, dtype: str, format: str) -> Array:
    """The same memory as another dtype, of words of this format; a new tensor where there is none,
    as strides of no elements are any."""
    try:
        if not is_torch(array):
            view = array.view(NUMPY_DTYPES[dtype])
            if not (array.flags.aligned and view.flags.aligned):  # NumPy would read it all the same
                raise ValueError(f"strides {array.strides} at address {array.ctypes.data}")
            return view
        from .._core import torch

        to, (*leading, last) = torch.DTYPES[dtype], array.shape
        if array.numel():
            return array.view(to)
        return array.new_empty((*leading, last * array.itemsize // to.itemsize), dtype=to)
    except (RuntimeError, ValueError) as error:
        each = 4 // NUMPY_DTYPES[format].itemsize
        expected = f"whole words of {each} {format} numbers, in rows that are contiguous"
        raise invalid_argument(operation, argument, expected, f"this: {error}") from None
