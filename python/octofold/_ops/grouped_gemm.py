"""Products of groups of rows, or of K, whose sizes are numbers on the device."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.formats import DTypeLike, dtype_of_result
from .._core.frameworks import Array, Framework, StreamLike
from .._core.ops import Arrays, Options
from .._core.scaled_tensor import ScaledTensor


class Rows(NamedTuple):
    """Groups of consecutive rows of `a`, such as the tokens of experts.

    offsets: int32 [G + 1], on the device of `a`: group g has the rows from offsets[g] up to
        offsets[g + 1]. Offsets begin at 0, never decrease, and end at M or before.
    """

    offsets: Array


class Masked(NamedTuple):
    """Groups with room for equally many rows, of which the first ones count.

    counts: int32 [G], on the device of `a`, from 0 to `rows`.
    expected_rows: the number of rows that a group is expected to have, by which the kernel is
        chosen. None: all.
    """

    counts: Array
    expected_rows: int | None = None


class Depth(NamedTuple):
    """Groups along K, each with a result of its own, as the gradients by the weights of experts.

    offsets: int32 [G + 1], on the device of `a`, of the rows that were cast: as in Rows.
    layout: "spaced": group g begins at column 128 · (offsets[g] // 128 + g), of 128 · (rows // 128
        + G) for so many rows that were cast. "tight": at column offsets[g], of 128 · (rows // 128);
        all offsets are then multiples of 128, as DeepGEMM and torchao have them.
    """

    offsets: Array
    layout: str = "spaced"


Groups: TypeAlias = Rows | Masked | Depth


def grouped_gemm(
    a: ScaledTensor,
    b: ScaledTensor,
    groups: Groups,
    *,
    c: Array | None = None,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """A product for each group g of rows, or of K.

    | groups                        | result                                                       |
    |-------------------------------|--------------------------------------------------------------|
    | Rows(offsets)                 | out[rows of g] = a[rows of g] · b[g]ᵀ (+ c[rows of g])       |
    |                               | (+ bias[g])                                                  |
    | Masked(counts, expected_rows) | out[g, i] = a[g, i] · b[g]ᵀ (+ bias[g]) for the first        |
    |                               | counts[g] rows i                                             |
    | Depth(offsets, layout)        | out[g] = a[:, K of g] · b[:, K of g]ᵀ (+ c[g])               |

    a: e4m3 or e5m2, scales of any granularity. Rows: [M, K], rows sorted by group. Masked:
        [G, rows, K], scales of rows in any strides from group to group, as DeepGEMM has them too.
        Depth: [M, columns], such as the cast of a transpose that was made with these offsets and
        this layout, which says where a group's K begins and how many columns there are.
    b: [G, N, K]; e4m3 or e5m2. Depth: [N, columns], as a. Its scale, by granularity:

        | granularity | scale                                                              |
        |-------------|--------------------------------------------------------------------|
        | "tensor"    | one element, or [G]                                                |
        | "channel"   | [G, N]                                                             |
        | "1x128"     | [G, N, ceil(K / 128)]                                              |
        | "128x128"   | [G, ceil(N / 128), ceil(K / 128)]: a group's blocks begin with it; |
        |             | where N is a multiple of 128, what quantize(b) gives, too          |

    groups: the host does not read their numbers on a GPU, so that they may change between replays
        of a CUDA graph.
    c: of out's shape, of its dtype or float32; may be `out` itself, which is added to in place.
        None beside Masked.
    bias: [G, N], of out's dtype or float32, contiguous. None beside Depth.
    out: bfloat16, float16 or float32. Rows: [M, N]; Masked: [G, rows, N]; Depth: [G, M, N]. Rows
        that belong to no group are not written: those of a new array are whatever memory held.
    out_dtype, fast_accumulation, stream: as in gemm(); and batch_invariant, whatever the groups
        are.

    Each group has the bits of a gemm() of its own, but where that sums K in slices. Of no K the sum
    is 0. Returns `out`, or a new array in the framework of a. Nothing is differentiated.
    Raises as gemm(); InvalidArgumentError on the CPU for numbers of groups that make no sense. On a
    GPU nothing outside of the given arrays is read or written, whatever they are. There Depth
    raises UnsupportedError where addresses or row strides of a or b are no multiples of 16 bytes.
    """
    require_operands("grouped_gemm", a, b)
    kind, numbers, expected_rows, layout = parts_of_groups("grouped_gemm", groups)
    inputs = (a.data, a.scale, b.data, b.scale, numbers, c, bias)
    scales, how = (a.granularity, b.granularity), (fast_accumulation, batch_invariant)
    options = (*scales, kind, expected_rows, layout, *how)
    name = dtype_of_result("grouped_gemm", out, out_dtype)
    return _GROUPED_GEMM(inputs, options, name, None if out is None else (out,), stream)[0]


def parts_of_groups(
    operation: str,
    groups: Groups,
    kinds: tuple[type, ...] = (Rows, Masked, Depth),
    expected: str = "Rows(offsets), Masked(counts) or Depth(offsets)",
) -> tuple[str, Array, int | None, str | None]:
    """The kind, the numbers, expected_rows and layout of groups of one of these kinds."""
    if not isinstance(groups, kinds):
        raise invalid_argument(operation, "groups", expected, type(groups).__qualname__)
    if isinstance(groups, Masked):
        return "masked", groups.counts, groups.expected_rows, None
    if isinstance(groups, Depth):
        return "depth", groups.offsets, None, groups.layout
    return "rows", groups.offsets, None, None


def require_operands(operation: str, a: ScaledTensor, b: ScaledTensor) -> None:
    """Both are ScaledTensors."""
    for argument, operand in (("a", a), ("b", b)):
        if not isinstance(operand, ScaledTensor):
            got = type(operand).__qualname__
            raise invalid_argument(operation, argument, "a ScaledTensor", got)


def sizes(operation: str, argument: str, array: Any, dimensions: Sequence[str]) -> Any:
    """The shape of an array, which is to have these dimensions."""
    if len(array.shape) != len(dimensions):
        expected = f"{len(dimensions)} dimensions, [{', '.join(dimensions)}]"
        raise invalid_argument(operation, argument, expected, f"{len(array.shape)}")
    return array.shape


# Dimensions of a, of b and of the result, where numbers of groups are [groups] or [groups + 1].
_OPERANDS: Final = {
    "rows": (("M", "K"), ("groups", "N", "K")),
    "masked": (("groups", "rows", "K"), ("groups", "N", "K")),
    "depth": (("M", "columns"), ("N", "columns")),
}


def _product(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    kind = options[2]
    a_dimensions, b_dimensions = _OPERANDS[kind]
    leading = sizes("grouped_gemm", "a", inputs[0], a_dimensions)[:-1]
    columns = sizes("grouped_gemm", "b", inputs[2], b_dimensions)[-2]
    if kind != "depth":
        return (framework.empty((*leading, columns), dtype),)
    (bounds,) = sizes("grouped_gemm", "groups.offsets", inputs[4], ("groups + 1",))
    if bounds == 0:
        raise invalid_argument("grouped_gemm", "groups.offsets", "at least 1 element", "0")
    return (framework.empty((bounds - 1, *leading, columns), dtype),)


_PARAMETERS: Final[dict[str, Any]] = {
    "a": ScaledTensor,
    "b": ScaledTensor,
    "groups.numbers": Array,
    "c": Array | None,
    "bias": Array | None,
    "groups": str,
    "groups.expected_rows": int | None,
    "groups.layout": str | None,
    "fast_accumulation": bool,
    "batch_invariant": bool,
}

_GROUPED_GEMM: Final = Op("grouped_gemm", _PARAMETERS, ("out",), _product, in_place="c")
