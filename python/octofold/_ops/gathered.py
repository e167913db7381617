"""Rows that are gathered, cast to FP8 on the way."""

from typing import Any, Final

from .._core.calls import Op
from .._core.dtypes import FP8, DTypeLike, dtype_name
from .._core.errors import invalid_argument
from .._core.frameworks import Array, Framework
from .._core.library import library
from .._core.ops import Arrays, Options, require_matrix
from .._core.streams import StreamLike
from .._core.targets import RESULTS_OF_TARGETS, Casts, allocate_casts, casts_of


def quantize_gathered(
    x: Array,
    sources: Array,
    slots: int,
    factors: Array | None = None,
    dtype: DTypeLike = "e4m3",
    granularity: str = "1x128",
    transposed_granularity: str | None = None,
    power_of_two: bool | None = None,
    overflow: str = "saturate",
    profile: str = "deepgemm",
    targets: str = "rows",
    offsets: Array | None = None,
    stream: StreamLike | None = None,
) -> Casts:
    """quantize(x[sources // slots]), without these rows in memory: what each expert multiplies.

    x: [..., cols], as in quantize(): the rows of T tokens.
    sources: int32 [rows], contiguous: the flat place, token · slots + slot, of each row that is
        cast. Of -1 (and, on a GPU, of all others outside of [0, T · slots)) there is none: rows of
        the cast are not written there; in its transpose they count as zeros.
    slots: places of a row of x, at least 1: to how many experts a token goes.
    factors: float32 [..., slots], contiguous, by which rows are multiplied, in FP32, rounded to the
        dtype of x before they are cast: quantize(x[sources // slots] * factors.flat[sources]).
    dtype, granularity, power_of_two, overflow, profile, stream: as in quantize().
    transposed_granularity, offsets: as in quantize_both().
    targets: "rows" for the cast [rows, cols]; "transposed" for that of its transpose, [cols, rows],
        or in the K-group layout of `offsets`; "both" for a pair of them from one read of x.

    Returns a ScaledTensor, or a pair. Nothing is differentiated, as in quantize().
    Raises InvalidArgumentError that names the argument.
    """
    name = dtype_name("quantize_gathered", "dtype", dtype, FP8)
    options = (
        slots,
        granularity,
        transposed_granularity,
        power_of_two,
        overflow,
        profile,
        targets,
    )
    results = _GATHERED((x, sources, factors, offsets), options, name, None, stream)
    return casts_of(results, granularity, transposed_granularity)


def _codes(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    operation = "quantize_gathered"
    x, sources, _, offsets = inputs
    _, granularity, transposed_granularity, *_, targets = options
    require_matrix(operation, "x", x.shape)
    if len(sources.shape) != 1:
        raise invalid_argument(operation, "sources", "int32 [rows]", f"{tuple(sources.shape)}")
    shape = (sources.shape[0], x.shape[-1])
    of_cast = (targets, granularity, transposed_granularity)
    return allocate_casts(operation, framework, shape, dtype, *of_cast, offsets)


def _quantize_gathered(*arguments: Any) -> None:
    *others, _targets, stream = arguments  # the library sees by its results what is wanted
    library.quantize_gathered(*others, stream)


_GATHERED: Final = Op(
    "quantize_gathered",
    quantize_gathered.__annotations__,
    results=RESULTS_OF_TARGETS,
    allocate=_codes,
    function=lambda: _quantize_gathered,
)
