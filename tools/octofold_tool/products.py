"""FP8 matrix products beside FP32 ones: checked, then timed."""

import dataclasses
import statistics
from typing import Any

import numpy as np
import octofold
from octofold._timing import spread

from .gemm_options import Shape
from .measure import MIN_ROUNDS, error_limit, interleaved_seconds, relative_error
from .report import ToolError

# Only so many rows and columns of a large product are checked, at random places.
CHECKED_ROWS, CHECKED_COLUMNS = 64, 512


@dataclasses.dataclass(frozen=True)
class GemmOptions:
    """The options of products: what is multiplied, and for how long."""

    dtypes: tuple[str, str]  # of A and B
    granularities: tuple[str, str]
    out_dtype: str
    rounds: int
    max_seconds: float = float("inf")  # of one round, an FP8 and an FP32 product, on the CPU
    fast_accumulation: bool = False


@dataclasses.dataclass(frozen=True)
class ShapeResult:
    """D[m, n] = A[m, k] · B[n, k]ᵀ."""

    m: int
    n: int
    k: int
    milliseconds_fp8: float
    milliseconds_float32: float
    gflops_fp8: float
    gflops_float32: float
    spread_fp8: float  # half the quartile range over the median
    spread_float32: float
    ratio: float  # FP32's time over FP8's: above 1, FP8 is faster
    relative_error: float
    rounds: int


def seconds_per_product(options: GemmOptions) -> float:
    """Seconds of a round for each product of two numbers, by the time that a cube takes."""
    size = 512
    cube = measure((size, size, size), options)
    return (cube.milliseconds_fp8 + cube.milliseconds_float32) / 1e3 / size**3


def measure(shape: Shape, options: GemmOptions) -> ShapeResult:
    """Check one product, then time it and NumPy's in turns."""
    m, n, k = shape
    random = np.random.default_rng()
    a = random.standard_normal((m, k), np.float32)
    b = random.standard_normal((n, k), np.float32)
    a8, b8 = (
        octofold.quantize(x, octofold.Format(dtype, granularity))
        for x, dtype, granularity in zip((a, b), options.dtypes, options.granularities, strict=True)
    )
    out = octofold.gemm(a8, b8, out_dtype=options.out_dtype)
    out32 = np.empty((m, n), np.float32)
    error = check(shape, a8, b8, out)

    calls = (
        lambda: octofold.gemm(a8, b8, out=out, fast_accumulation=options.fast_accumulation),
        lambda: np.matmul(a, b.T, out=out32),
    )
    budget = MIN_ROUNDS * options.max_seconds  # then a shape gets no more rounds than the least
    fp8, float32 = interleaved_seconds(calls, options.rounds, budget)
    fp8_median, float32_median = statistics.median(fp8), statistics.median(float32)
    gflop = 2e-9 * m * n * k
    return ShapeResult(
        m=m,
        n=n,
        k=k,
        milliseconds_fp8=fp8_median * 1e3,
        milliseconds_float32=float32_median * 1e3,
        gflops_fp8=gflop / fp8_median,
        gflops_float32=gflop / float32_median,
        spread_fp8=spread(fp8),
        spread_float32=spread(float32),
        ratio=float32_median / fp8_median,
        relative_error=error,
        rounds=len(fp8),
    )


def check(shape: Shape, a8: octofold.ScaledTensor, b8: octofold.ScaledTensor, out: Any) -> float:
    """Relative error against the FP64 product of the dequantized operands.

    The output is written afresh over NaN, so that nothing that is left out can pass.
    """
    out[...] = np.nan
    octofold.gemm(a8, b8, out=out)
    name = ",".join(map(str, shape))
    if np.isnan(out).any():
        raise ToolError(f"{name}: the product was not written everywhere: a fault of ours")
    random = np.random.default_rng()
    rows = random.permutation(shape[0])[:CHECKED_ROWS]
    columns = random.permutation(shape[1])[:CHECKED_COLUMNS]
    expected = dequantized_rows(a8, rows) @ dequantized_rows(b8, columns).T
    error = relative_error(out[np.ix_(rows, columns)].astype(np.float32), expected)
    limit = error_limit(str(out.dtype), expected.size)
    if not error <= limit:
        raise ToolError(f"{name}: relative error {error:.1e} exceeds {limit:.1e}: a fault of ours")
    return error


def dequantized_rows(x: octofold.ScaledTensor, rows: Any) -> Any:
    """These rows of the dequantized matrix in FP64, without the memory that all would take."""
    scale, granularity = x.scale, x.granularity
    if granularity == "128x128":  # a row of a square block is a 1x128 block
        scale, granularity = scale[rows // 128], "1x128"
    elif granularity != "tensor":
        scale = scale[rows]
    return octofold.ScaledTensor(x.data[rows], scale, granularity).dequantize().astype(np.float64)
