"""The first half of a gated MLP in one operation."""

from typing import Any, Final

from .._core.calls import Op
from .._core.errors import invalid_argument, require_type
from .._core.formats import FormatLike, format_of
from .._core.frameworks import Array, Framework, StreamLike
from .._core.ops import Arrays, Options, quick_scale_shape, require_matrix
from .._core.scaled_tensor import ScaledTensor
from .grouped_gemm import Rows, require_operands, sizes


def gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    groups: Rows | None = None,
    *,
    activation: str = "swiglu",
    format: FormatLike = "1x128",
    batch_invariant: bool = False,
    out: ScaledTensor | None = None,
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """Compute the cast of activation(a · gateᵀ, a · upᵀ), without either product in memory.

    a: [..., K], scales 1x128; e4m3 or e5m2. With groups: [M, K], rows sorted by group.
    b: [2·N, K], scales 128x128; e4m3 or e5m2. Rows 0 to N - 1 are the gate's weights, the others
        up's. With groups: [G, 2·N, K], scales as in grouped_gemm(), a group's gates and then its
        ups. On a GPU N is a multiple of 128, and K one of 16.
    groups: Rows(offsets): each row is multiplied with the weights of its group, as in
        grouped_gemm(). There are no kernels for Masked, where rows that do not exist would be cast,
        and none for Depth, whose results are sums of gradients.
    activation: "swiglu" (silu(gate) · up), "geglu-tanh", "geglu" (with the error function) or
        "swiglu-oss" (gpt-oss's, which clamps both and takes up + 1).
    format: that of the result, a Format or its words, of granularity 1x128.
    out: where to write, codes [..., N] and scales 1x128.
    batch_invariant, stream: as in gemm().

    Returns `out`, or a new ScaledTensor [..., N] in the framework of a. It is the cast of the
    activation of gemm(a, b), to the bit unless gemm() uses split-K. Gate and up are rounded to
    bfloat16, the activation is computed in FP32 and rounded to bfloat16, and that is cast. With
    groups, rows from the last offset on are not written. There is no gradient, as in quantize().
    Raises InvalidArgumentError, which names the argument; on a GPU UnavailableError without a
    usable driver or compiler and UnsupportedError where there are no kernels for it, or for such
    sizes or strides.
    """
    require_operands("gated_gemm", a, b)
    if groups is not None:
        expected = "Rows(offsets), which alone has kernels, or None"
        require_type("gated_gemm", "groups", groups, Rows, expected)
    cast = format_of("gated_gemm", format)
    if cast.granularity != "1x128":
        raise invalid_argument("gated_gemm", "format", "one of granularity 1x128", str(cast))
    inputs = (a.data, a.scale, b.data, b.scale, None if groups is None else groups.offsets)
    options = (a.granularity, b.granularity, activation, *cast.options, batch_invariant)
    if out is None:
        data, scale = _GATED_GEMM(inputs, options, cast.dtype, None, stream)
        return ScaledTensor(data, scale, "1x128")
    require_type("gated_gemm", "out", out, ScaledTensor, "a ScaledTensor")
    _GATED_GEMM(inputs, options, "", (out.data, out.scale), stream)
    return out


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    a, b = inputs[0].shape, inputs[2].shape
    if inputs[4] is None:
        require_matrix("gated_gemm", "a", a)
        require_matrix("gated_gemm", "b", b)
        shape = (*a[:-1], b[0] // 2)
    else:
        rows, _ = sizes("gated_gemm", "a", inputs[0], ("M", "K"))
        _, columns, _ = sizes("gated_gemm", "b", inputs[2], ("groups", "2·N", "K"))
        shape = (rows, columns // 2)
    scale_shape = quick_scale_shape("1x128", shape)
    return framework.empty_codes(shape, dtype), framework.empty_scale(scale_shape, "1x128")


_PARAMETERS: Final[dict[str, Any]] = {
    "a": ScaledTensor,
    "b": ScaledTensor,
    "groups.offsets": Array | None,
    "activation": str,
    "format.power_of_two": bool | None,
    "format.overflow": str,
    "format.rule": str,
    "batch_invariant": bool,
}

_GATED_GEMM: Final = Op("gated_gemm", _PARAMETERS, ("out", "out.scale"), _codes)
