"""Dynamic quantization and the product in one operation."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, WIDE, DTypeLike, dtype_name
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def dynamic_gemm(
    x: Array,
    b: ScaledTensor,
    bias: Array | None = None,
    out_dtype: DTypeLike = "bfloat16",
    *,
    dtype: DTypeLike = "e4m3",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    stream: StreamLike | None = None,
) -> Array:
    """The product cast(x[..., K]) · b[N, K]ᵀ (+ bias[N]); the cast of x does not come into memory.

    x: float32, float16 or bfloat16; columns contiguous, any row stride. On a GPU, rows whose
        addresses and lengths are multiples of 16 bytes are read fastest.
    b: e4m3 or e5m2, scales of any granularity. On a GPU its rows begin at multiples of 16 bytes.
    bias: of out_dtype or float32, contiguous.
    out_dtype: of the result: bfloat16, float16 or float32.
    dtype: of x's codes, "e4m3" or "e5m2"; each 1x128 has a scale.
    power_of_two, overflow, profile: of the cast, as in quantize().
    stream: as in gemm().

    Returns [..., N] in the framework of x: what gemm(quantize(x), b) gives, to the bit where both
    take K in the same slices. Meant for few rows, as in decoding: it saves a kernel, and casts x
    once for each 64 columns of the result. Nothing is differentiated, as in quantize().
    Raises InvalidArgumentError that names the argument; on a GPU UnavailableError without a usable
    driver or compiler and UnsupportedError without kernels for it or for such strides of b.
    """
    if not isinstance(b, ScaledTensor):
        got = type(b).__qualname__
        raise invalid_argument("dynamic_gemm", "b", "a ScaledTensor", got)
    require_one_level("dynamic_gemm", "b", b)
    result = dtype_name("dynamic_gemm", "out_dtype", out_dtype, WIDE)
    codes = dtype_name("dynamic_gemm", "dtype", dtype, FP8)
    inputs = (x, b.data, b.scale, bias)
    options = (b.granularity, codes, power_of_two, overflow, profile)
    return _DYNAMIC_GEMM(inputs, options, result, None, stream)[0]


def _product(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x, b = inputs[0].shape, inputs[1].shape
    require_matrix("dynamic_gemm", "x", x)
    require_matrix("dynamic_gemm", "b", b)
    return (framework.empty((*x[:-1], b[0]), dtype),)


_DYNAMIC_GEMM: Final = Op(
    "dynamic_gemm",
    {**dynamic_gemm.__annotations__, "dtype": str},  # of codes, which the library is told
    results=("out",),
    allocate=_product,
    function=lambda: library.dynamic_gemm,
)
