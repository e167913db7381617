"""Products of groups of rows, or of K, whose sizes are numbers on the device."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from .._core.calls import Op
from .._core.dtypes import FP8, WIDE, DTypeLike, dtype_name, require_dtype_of_out
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, quick_scale_shape
from .._core.scaled_tensor import ScaledTensor, require_one_level
from .._core.streams import StreamLike


def grouped_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Array,
    out: Array | None = None,
    c: Array | None = None,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    stream: StreamLike | None = None,
) -> Array:
    """out[rows of g] = a[rows of g] · b[g]ᵀ (+ c[rows of g]) (+ bias[g]), for each group g.

    a: [M, K], rows sorted by group; e4m3 or e5m2, scales of any granularity.
    b: [G, N, K]; e4m3 or e5m2. Its scale, by granularity:

        | granularity | scale                                                              |
        |-------------|--------------------------------------------------------------------|
        | "tensor"    | one element, or [G]                                                |
        | "channel"   | [G, N]                                                             |
        | "1x128"     | [G, N, ceil(K / 128)]                                              |
        | "128x128"   | [G, ceil(N / 128), ceil(K / 128)]: a group's blocks begin with it; |
        |             | where N is a multiple of 128, what quantize(b) gives, too          |

    offsets: int32 [G + 1], on the device of a: the rows of g are those from offsets[g] up to
        offsets[g + 1]. Begins at 0, never decreases, ends at M or before. The host does not read
        them on a GPU, so that they may change between replays of a CUDA graph.
    out: [M, N] bfloat16, float16 or float32. Rows from the last offset on are not written: those of
        a new array are whatever memory held.
    c: [M, N], of out's dtype or float32; may be `out` itself.
    bias: [G, N], of out's dtype or float32, contiguous.
    out_dtype, fast_accumulation, stream: as in gemm().

    Each group's rows have the bits of a gemm() of their own, but where that sums K in slices.
    Returns `out`, or a new array in the framework of a. Nothing is differentiated.
    Raises as gemm(); InvalidArgumentError for offsets that make no sense, on the CPU. On a GPU
    nothing outside of the given arrays is read or written, whatever they are.
    """
    _require_operands("grouped_gemm", a, b)
    inputs = (a.data, a.scale, b.data, b.scale, offsets, c, bias)
    options = (a.granularity, b.granularity, fast_accumulation)
    return _multiply(_GROUPED_GEMM, inputs, options, out, out_dtype, stream)


def masked_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    counts: Array,
    out: Array | None = None,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    expected_rows: int | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """out[g, i] = a[g, i] · b[g]ᵀ (+ bias[g]) for the first counts[g] rows i of each group g.

    a: [G, rows, K]; scales of any granularity.
    b, bias: as in grouped_gemm().
    counts: int32 [G], on the device of a, from 0 to `rows`.
    out: [G, rows, N]. Rows behind a group's count are not written.
    expected_rows: how many rows a group is expected to have: the kernel is chosen by that. None:
        all.
    Other arguments, result and errors: as in grouped_gemm().
    """
    _require_operands("masked_gemm", a, b)
    inputs = (a.data, a.scale, b.data, b.scale, counts, bias)
    options = (a.granularity, b.granularity, fast_accumulation, expected_rows)
    return _multiply(_MASKED_GEMM, inputs, options, out, out_dtype, stream)


def grouped_gemm_k(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Array,
    out: Array | None = None,
    c: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    stream: StreamLike | None = None,
) -> Array:
    """out[g] = a[:, K of g] · b[:, K of g]ᵀ (+ c[g]), for each group g: gradients by weights.

    a, b: [M, columns] and [N, columns], casts of transposes made with these offsets (`offsets=` of
        quantize_both() and others): group g's K begins at column 128 · (offsets[g] // 128 + g), and
        `columns` is 128 · (rows // 128 + G) for so many rows that were cast.
    offsets: int32 [G + 1], on the device of a, as in grouped_gemm(). Of no rows the sum is 0.
    out, c: [G, M, N]; c may be `out` itself, which then is added to in place.
    Other arguments, result and errors: as in grouped_gemm(). On a GPU UnsupportedError where
    addresses or row strides of a or b are no multiples of 16 bytes.
    """
    _require_operands("grouped_gemm_k", a, b)
    inputs = (a.data, a.scale, b.data, b.scale, offsets, c)
    options = (a.granularity, b.granularity, fast_accumulation)
    return _multiply(_GROUPED_GEMM_K, inputs, options, out, out_dtype, stream)


def grouped_gated_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    offsets: Array,
    activation: str = "swiglu",
    *,
    dtype: DTypeLike = "e4m3",
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    stream: StreamLike | None = None,
) -> ScaledTensor:
    """gated_gemm() of groups of rows: the cast of activation(a · gate[g]ᵀ, a · up[g]ᵀ).

    a: [M, K], scales 1x128, rows sorted by group.
    b: [G, 2·N, K], scales 128x128 as in grouped_gemm(): a group's gates, then its ups. On a GPU N
        is a multiple of 128.
    offsets: as in grouped_gemm().
    Other arguments and errors: as in gated_gemm(). Returns a ScaledTensor [M, N], scales 1x128;
    rows from the last offset on are whatever memory held.
    """
    operation = "grouped_gated_gemm"
    _require_operands(operation, a, b)
    name = dtype_name(operation, "dtype", dtype, FP8)
    inputs = (a.data, a.scale, b.data, b.scale, offsets)
    options = (a.granularity, b.granularity, activation, power_of_two, overflow, profile)
    data, scale = _GROUPED_GATED_GEMM(inputs, options, name, None, stream)
    return ScaledTensor(data, scale, "1x128")


def _require_operands(operation: str, a: ScaledTensor, b: ScaledTensor) -> None:
    for argument, operand in (("a", a), ("b", b)):
        if not isinstance(operand, ScaledTensor):
            got = type(operand).__qualname__
            raise invalid_argument(operation, argument, "a ScaledTensor", got)
        require_one_level(operation, argument, operand)


def _multiply(
    op: Op,
    inputs: Arrays,
    options: Options,
    out: Array | None,
    out_dtype: DTypeLike | None,
    stream: StreamLike | None,
) -> Array:
    if out is None:
        name = "bfloat16"
        if out_dtype is not None:
            name = dtype_name(op.name, "out_dtype", out_dtype, WIDE)
        return op(inputs, options, name, None, stream)[0]
    require_dtype_of_out(op.name, out, out_dtype)
    op(inputs, options, "", (out,), stream)
    return out


def _sizes(operation: str, argument: str, array: Any, dimensions: Sequence[str]) -> Any:
    if len(array.shape) != len(dimensions):
        expected = f"{len(dimensions)} dimensions, [{', '.join(dimensions)}]"
        raise invalid_argument(operation, argument, expected, f"{len(array.shape)}")
    return array.shape


_B: Final = ("groups", "N", "K")


def _rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    rows, _ = _sizes("grouped_gemm", "a", inputs[0], ("M", "K"))
    _, columns, _ = _sizes("grouped_gemm", "b", inputs[2], _B)
    return (framework.empty((rows, columns), dtype),)


def _masked_rows(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    groups, rows, _ = _sizes("masked_gemm", "a", inputs[0], ("groups", "rows", "K"))
    _, columns, _ = _sizes("masked_gemm", "b", inputs[2], _B)
    return (framework.empty((groups, rows, columns), dtype),)


def _sums(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    rows, _ = _sizes("grouped_gemm_k", "a", inputs[0], ("M", "columns"))
    columns, _ = _sizes("grouped_gemm_k", "b", inputs[2], ("N", "columns"))
    (bounds,) = _sizes("grouped_gemm_k", "offsets", inputs[4], ("groups + 1",))
    if bounds == 0:
        raise invalid_argument("grouped_gemm_k", "offsets", "at least 1 element", "0")
    return (framework.empty((bounds - 1, rows, columns), dtype),)


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    rows, _ = _sizes("grouped_gated_gemm", "a", inputs[0], ("M", "K"))
    _, columns, _ = _sizes("grouped_gated_gemm", "b", inputs[2], _B)
    shape = (rows, columns // 2)
    scale_shape = quick_scale_shape("1x128", shape)
    return framework.empty(shape, dtype), framework.empty_scale(scale_shape, "1x128")


def _op(
    function: Callable[..., Any],
    results: Sequence[str],
    allocate: Callable[[Framework, Arrays, Options, str], Arrays],
    in_place: str | None = None,
) -> Op:
    name = function.__name__
    return Op(
        name,
        function.__annotations__,
        results=results,
        allocate=allocate,
        function=lambda: getattr(library, name),
        in_place=in_place,
    )


_GROUPED_GEMM: Final = _op(grouped_gemm, ("out",), _rows, in_place="c")
_MASKED_GEMM: Final = _op(masked_gemm, ("out",), _masked_rows)
_GROUPED_GEMM_K: Final = _op(grouped_gemm_k, ("out",), _sums, in_place="c")
_GROUPED_GATED_GEMM: Final = _op(grouped_gated_gemm, ("out", "out.scale"), _codes)
