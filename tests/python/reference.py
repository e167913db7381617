"""Scaled casts and products in plain NumPy, written from the tables of docs/numerics.md.

Shares no code with the library. FP32 arithmetic unless it says float64.
"""

import ml_dtypes
import numpy as np

from tests.python.casting import GRANULARITIES as GRANULARITIES
from tests.python.casting import RULES as RULES

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
LARGEST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
NAN_CODE = 0x7F


def offsets_of(sizes):
    """The numbers between which groups of these sizes lie, one behind another."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def quietly_cast(values, dtype):
    """NumPy's cast. On AArch64 NumPy warns of signalling NaNs of float16, and of what unsigned
    integers do not hold."""
    with np.errstate(invalid="ignore"):
        return values.astype(dtype)


def encode(values, dtype, overflow):
    """FP32 values to FP8 codes (uint8); every NaN is the positive all-ones code."""
    values = np.asarray(values, np.float32)
    rounded = values
    if overflow == "saturate":
        rounded = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
    with np.errstate(all="ignore"):
        converted = rounded.astype(DTYPES[dtype])
        is_nan = np.isnan(converted.astype(np.float32))
    return np.where(is_nan, np.uint8(NAN_CODE), converted.view(np.uint8))


def decode(codes, dtype):
    """FP8 codes (uint8) to FP32."""
    return np.asarray(codes, np.uint8).view(DTYPES[dtype]).astype(np.float32)


def unit_sizes(granularity, rows, cols):
    return {
        "tensor": (max(rows, 1), max(cols, 1)),
        "channel": (1, max(cols, 1)),
        "1x128": (1, 128),
        "128x128": (128, 128),
    }[granularity]


def per_unit(matrix, granularity, function):
    """function of each unit, as a grid [units along rows, units along columns]."""
    rows, cols = matrix.shape
    height, width = unit_sizes(granularity, rows, cols)
    if granularity == "tensor" and matrix.size == 0:
        return np.full((1, 1), function(np.zeros((1, 1), matrix.dtype)))
    row_starts, col_starts = range(0, rows, height), range(0, cols, width)
    if granularity == "channel" and cols == 0:
        matrix, col_starts = np.zeros((rows, 1), matrix.dtype), range(1)
    grid = [
        [function(matrix[i : i + height, j : j + width]) for j in col_starts] for i in row_starts
    ]
    return np.array(grid, matrix.dtype).reshape(len(row_starts), len(col_starts))


def shape_scale(grid, granularity):
    """The grid in the shape of the public scale tensor."""
    return grid.reshape(-1) if granularity in ("tensor", "channel") else grid


def bits_of(value):
    return int(np.float32(value).view(np.uint32))


def from_bits(bits):
    return np.uint32(bits).view(np.float32)


def ceil_power_of_two(value):
    bits = bits_of(value)
    exponent = (bits >> 23 & 0xFF) + (bits & 0x7FFFFF != 0)
    return from_bits(min(max(exponent, 1), 254) << 23)


def log2_rounded(value):
    return np.float32(np.log2(np.float64(value)))


FLOORS = dict.fromkeys(("deepgemm", "deepgemm-cuda", "tilekernels", "deepseek"), 1e-4)
FLOORS |= dict.fromkeys(("vllm", "vllm-triton"), 1e-10)
PRODUCTS = ("deepgemm-cuda", "vllm-triton", "torchao-tensor-cuda", "deepseek")


def factor_cast(amax, largest, rule, power_of_two, source, granularity):
    """unit_cast() by the rules whose scale is the inverse of a factor."""
    one = np.float32(1)
    factor = largest / amax
    if rule == "te":
        widest = source if granularity != "tensor" else np.float32
        factor = one if np.isnan(amax) or np.isinf(amax) or amax == 0 else factor
        factor = np.float32(ml_dtypes.finfo(widest).max) if np.isinf(factor) else factor
        if power_of_two:
            factor = from_bits(bits_of(factor) & 0xFF800000)
    if rule == "torchao":
        factor = np.float32(np.float64(largest) / np.maximum(np.float64(amax), 1e-12))
        if power_of_two:
            factor = np.exp2(np.floor(log2_rounded(factor)))
    if rule == "transformers":
        factor = one / amax * largest if amax > 0 else one
        if power_of_two:
            scale = np.maximum(one / factor, np.finfo(np.float32).tiny)
            factor = one / np.exp2(np.ceil(log2_rounded(scale)))
    return one / factor, lambda x: x * factor


def unit_cast(amax, largest, rule, power_of_two, source, granularity):
    """(scale, how codes come from x) for one unit of elements of type `source`."""
    one, amax = np.float32(1), np.float32(amax)
    if rule in ("te", "torchao", "transformers"):
        return factor_cast(amax, largest, rule, power_of_two, source, granularity)

    def in_source(values):
        return values.astype(source).astype(np.float32)

    amax = np.maximum(amax, np.float32(FLOORS.get(rule, 0)))
    scale = amax * (one / largest) if rule in PRODUCTS else amax / largest
    if rule == "vllm-per-token":
        scale = np.maximum(scale, one / np.float32(448 * 512))
    if rule.startswith(("torchao-tensor", "compressed-tensors")):
        scale = in_source(scale)
    if rule == "compressed-tensors" and scale == 0:
        scale = np.float32(ml_dtypes.finfo(source).eps)
    if rule == "compressed-tensors-0.12":
        scale = np.maximum(scale, np.finfo(np.float32).eps)
    if power_of_two and rule in ("deepseek", "vllm-triton"):
        scale = np.exp2(np.ceil(log2_rounded(scale)))
    elif power_of_two and rule == "vllm":
        scale = np.maximum(scale, np.float32(1e-10))
        scale = ceil_power_of_two(scale) if np.isfinite(scale) else scale
    elif power_of_two:
        scale = ceil_power_of_two(scale)
    inverse = one / scale
    if rule == "tilekernels" and not power_of_two:
        inverse = largest / amax
    if rule in ("deepgemm", "deepgemm-cuda", "tilekernels", "vllm"):
        return scale, lambda x: x * inverse
    if rule.startswith("compressed-tensors"):
        return scale, lambda x: in_source(x / scale) + np.float32(0)  # -0 + 0 is 0
    return scale, lambda x: x / scale


def quantize(x, dtype, granularity, power_of_two, overflow, rule, transpose, amax=None):
    """(codes as uint8, scale) of a matrix of float32, float16 or bfloat16.
    amax: of the units, where it is given."""
    source = np.asarray(x).dtype
    matrix = np.asarray(x).astype(np.float32)
    if transpose:
        matrix = np.ascontiguousarray(matrix.T)
    if power_of_two is None:
        power_of_two = rule == "te"
    rows, cols = matrix.shape
    largest = LARGEST[dtype]
    with np.errstate(all="ignore"):
        if amax is None:
            amax = per_unit(matrix, granularity, lambda unit: np.max(np.abs(unit)))
        else:
            amax = np.abs(amax).reshape(-1, 1)
        scale = np.empty_like(amax)
        values = np.empty_like(matrix)
        height, width = unit_sizes(granularity, rows, cols)
        for i, j in np.ndindex(amax.shape):
            options = rule, power_of_two, source, granularity
            scale[i, j], apply = unit_cast(amax[i, j], largest, *options)
            unit = np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
            values[unit] = apply(matrix[unit])
    return encode(values, dtype, overflow), shape_scale(scale, granularity)


def dequantize(data, scale, granularity):
    """data × scale in FP64."""
    rows, cols = data.shape
    height, width = unit_sizes(granularity, rows, cols)
    # Scales of a whole matrix or of rows are vectors: one unit along the columns.
    grid = np.asarray(scale, np.float64)
    grid = grid.reshape(-1, 1) if granularity in ("tensor", "channel") else grid
    of_element = grid[np.arange(rows)[:, None] // height, np.arange(cols) // width]
    return data.astype(np.float64) * of_element
