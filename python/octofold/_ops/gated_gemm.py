"""The first half of a gated MLP in one operation."""

from typing import Final

from .._core.calls import Op
from .._core.dtypes import FP8, DTypeLike, dtype_name
from .._core.errors import invalid_argument
from .._core.frameworks import Framework
from .._core.library import library
from .._core.ops import Arrays, Options, quick_scale_shape, require_matrix
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    activation: str = "swiglu",
    *,
    dtype: DTypeLike = "e4m3",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """The cast of activation(a · gateᵀ, a · upᵀ), neither of which comes into memory.

    a: [..., K], scales 1x128; e4m3 or e5m2.
    b: [2·N, K], scales 128x128; e4m3 or e5m2. Rows 0 to N - 1 are the gate's weights, the others
        up's. On a GPU N is a multiple of 128, and K one of 16.
    activation: "swiglu" (silu(gate) · up), "geglu-tanh" or "geglu" (with the error function).
    dtype: of the result, "e4m3" or "e5m2".
    power_of_two, overflow, profile: of the cast, as in quantize().
    stream: as in gemm().

    Returns a ScaledTensor [..., N] with scales 1x128, in the framework of a: what
    quantize_activation(gemm(a, b), activation) gives, to the bit where gemm() does not sum K in
    slices. Gate and up are rounded to bfloat16, and so is what the activation makes of them in
    FP32; that is cast. Nothing is differentiated, as in quantize().
    Raises InvalidArgumentError that names the argument; on a GPU UnavailableError without a usable
    driver or compiler and UnsupportedError without kernels for it or for such sizes or strides.
    """
    for argument, operand in (("a", a), ("b", b)):
        if not isinstance(operand, ScaledTensor):
            got = type(operand).__qualname__
            raise invalid_argument("gated_gemm", argument, "a ScaledTensor", got)
        require_one_level("gated_gemm", argument, operand)
    name = dtype_name("gated_gemm", "dtype", dtype, FP8)
    inputs = (a.data, a.scale, b.data, b.scale)
    options = (a.granularity, b.granularity, activation, power_of_two, overflow, profile)
    data, scale = _GATED_GEMM(inputs, options, name, None, stream)
    return ScaledTensor(data, scale, "1x128")


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    a, b = inputs[0].shape, inputs[2].shape
    require_matrix("gated_gemm", "a", a)
    require_matrix("gated_gemm", "b", b)
    shape = (*a[:-1], b[0] // 2)
    scale_shape = quick_scale_shape("1x128", shape)
    return framework.empty(shape, dtype), framework.empty_scale(scale_shape, "1x128")


_GATED_GEMM: Final = Op(
    "gated_gemm",
    gated_gemm.__annotations__,
    results=("out", "out.scale"),
    allocate=_codes,
    function=lambda: library.gated_gemm,
)
