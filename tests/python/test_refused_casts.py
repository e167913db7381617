"""Refusals of casts, of arrays and of what casts are fused with: each bad argument gets its own
clear error, and nothing is copied or converted silently."""

import ml_dtypes
import numpy as np
from octofold import Format, ScaledTensor, quantize
from octofold.ops import Target, cast, norm

from tests.python.refusals import check, ints, ones, table

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
UNIT = {"rows": "1x128"}
BOTH = {"rows": "1x128", "transposed": "1x128"}


def scaled(rows, cols, granularity="1x128", dtype="e4m3"):
    return quantize(ones(rows, cols), Format(dtype, granularity))


def fp8(rows, cols, scale_cols=1, granularity="1x128", dtype=E4M3):
    return ScaledTensor(np.zeros((rows, cols), dtype), ones(rows, scale_cols), granularity)


def unaligned(count, dtype):
    memory = np.zeros(64, np.uint8)
    start = -memory.ctypes.data % 8 + 1
    return memory[start : start + count * np.dtype(dtype).itemsize].view(dtype)


QUANTIZE = """
quantize([[1.0]])  argument 'x': expected a NumPy array, … got builtins.list
quantize(np.float32(1))  argument 'x': expected a NumPy array
quantize(np.array(1, np.float32))  argument 'x': expected a matrix
quantize(ones(3))  argument 'x': expected a matrix
quantize(ones(*[1] * 9))  argument 'x': expected at most 8 dimensions, got 9
quantize(ones(4, 3, 2, 8)[:, ::2].transpose(1, 0, 2, 3))  argument 'x': expected leading dimensions
quantize(ones(3, 3, dtype=float))
    argument 'x': expected dtype float32, float16 or bfloat16, got float64
quantize(ones(3, 3, dtype=np.int32))  argument 'x': expected dtype … got int32
quantize(ones(3, 3, dtype=complex))  argument 'x': expected dtype … got DLPack type code 5
quantize(ones(3, 3) > 0)  argument 'x': expected dtype … got bool
quantize(ones(3, 3, dtype=object))  argument 'x': expected a tensor that DLPack can
quantize(ones(3, 3, dtype=str))  argument 'x': expected a tensor that DLPack can
quantize(scaled(3, 3).data)  argument 'x': expected dtype … got e4m3
quantize(ones(3, 3, dtype=">f4"))  argument 'x': … native byte order
quantize(ones(3, 4).T)  argument 'x': expected contiguous columns … [1, 4]
quantize(ones(3, 8)[:, ::2])  argument 'x': expected contiguous columns
quantize(ones(3, 4)[:, ::-1])  argument 'x': expected contiguous columns
quantize(unaligned(6, "f4").reshape(2, 3))  argument 'x': expected data aligned to its element size
quantize(ones(3, 4), "2x2")
    argument 'format': expected … granularities: tensor, channel, … got '2x2'
quantize(ones(3, 4), "mine")  argument 'format': expected … rules: deepgemm, … got 'mine'
quantize(ones(3, 4), "float16")  argument 'format': expected … dtypes: e4m3, e5m2; … got 'float16'
quantize(ones(3, 4), "e4m3 e5m2")
    argument 'format': expected at most one word of each kind … 'e5m2'
quantize(ones(3, 4), None)  argument 'format': expected a Format or a text, got None
quantize(ones(3, 4), scale=ones(3))  argument 'scale': expected shape
quantize(ones(3, 4), scale=ones(3, 1, dtype=float))
    argument 'scale': expected dtype float32, got float64
quantize(ones(3, 4), out=ones(3, 4))  argument 'out': expected a ScaledTensor, got ndarray
quantize(ones(3, 4), out=scaled(4, 4))  argument 'out': expected shape [3, 4]
quantize(ones(3, 4), "e5m2", out=scaled(3, 4))
    argument 'out': expected codes and scales of the format: e5m2 1x128, got e4m3 1x128
quantize(ones(3, 4), "channel", out=scaled(3, 4, "tensor"))
    argument 'out': expected … e4m3 channel, got e4m3 tensor
quantize(STACK, matrices=4)
    argument 'matrices': expected a number from 1 on that divides 390 rows, got 4
quantize(STACK, matrices="3")  argument 'matrices': expected a whole number or None, got '3'
quantize(STACK, "128x128", matrices=3, scale=ones(4, 2))
    argument 'scale': expected shape [3, 2, 2], got [4, 2]
quantize(STACK, "tensor", matrices=3, scale=ones(1))  argument 'scale': expected shape [3], got [1]
scale_shape(None, 1, 4)  text and whole numbers, got None
scale_shape("tensor", -1, 4)  expected sizes of at least 0, got -1
scale_shape("", 1, 4)  granularity '' is not one of
scale_shape("tensor", 5, 5, matrices=2)
    argument 'matrices': expected a number from 1 on that divides 5 rows
scaled(3, 4).dequantize("e4m3")  'dtype': expected one of float32, … got 'e4m3'
ScaledTensor(ones(3, 4, dtype=E4M3), None, "1x128").dequantize()
    'x.scale': expected a NumPy … got None
ScaledTensor(ones(3, 4, dtype=E4M3), ones(3, 1), 7).dequantize()  'x.granularity': expected text
convert_dtype(np.array(1, np.float32), "e4m3")  argument 'x': expected at least 1 dim
convert_dtype(np.array(1, E4M3), "float32")  argument 'x': expected at least 1 dim
convert_dtype(ones(4), "e4m3", overflow=1)  argument 'overflow': expected text, got 1
convert_dtype(ones(4)[::2], "e4m3")  argument 'x': expected contiguous col
convert_dtype(ones(4), "e3m4")  argument 'dtype': expected one of
transpose(ones(2, 3))  argument 'x': expected one of e4m3, e5m2
transpose(ones(3, dtype=E4M3))  argument 'x': expected a matrix
transpose(ones(3, 4, dtype=E4M3)[:, ::2])  argument 'x': expected contiguous columns
transpose(ones(2, 3, 4, dtype=E4M3)[:, :2])  argument 'x': expected leading dimensions
"""
STACK, X = ones(3, 130, 200), ones(130, 300)


@table(QUANTIZE)
def test_quantize(call, message):
    check(call, message, globals())


CAST = """
cast(X)  argument 'rows': expected a format here, or for 'transposed'
cast(X, rows=3)  argument 'rows': expected a Format or a text, got 3
cast(X, rows=Target("channel", out=scaled(130, 300)))  argument 'rows.out': expected
cast(X, rows="e4m3", transposed="e5m2")
    argument 'transposed': expected the dtype of 'rows', as one cast has both: e4m3, got e5m2
cast(X, rows="te", transposed="channel vllm")
    argument 'transposed': expected the rule of 'rows', … te, got vllm
cast(X, **UNIT, columns="sum")
    argument 'columns': expected one of sums, amax, both, or None
cast(Activated(X), **UNIT, columns="sum")  argument 'columns': expected one of
cast(ActivationGradient(X, X, "silu"), **UNIT, columns="sum")  argument 'columns': expected one of
cast(Normed(X), **UNIT, columns="sum")  argument 'columns': expected one of
cast(X, rows=Target("1x128", amax=ones(130, 3)))
    argument 'rows.amax': expected it to be omitted, except
cast(X, transposed=Target("128x128", amax=ones(3, 2)))
    argument 'transposed.amax': … as long as the matrix
cast(X, rows=Target("channel", amax=ones(130), scale=ones(130)))
    argument 'rows.amax': expected it to be omitted beside given
cast(X, rows=Target("channel", amax=ones(300)))  argument 'rows.amax': expected shape [130]
cast(X, transposed=Target("channel", amax=ones(130)))
    argument 'transposed.amax': expected shape [300]
cast(X, transposed=Target("tensor", amax=ones(130)))  argument 'transposed.amax': expected shape [1]
cast(X, rows=Target("tensor", amax=ones(1, dtype="f2")))  argument 'rows.amax': … float32
cast(X, rows=Target("tensor", amax=1.0))  argument 'rows.amax'
cast(X, rows=Target("channel", amax=ROWS, out=ScaledTensor(X.astype(E4M3), ROWS, "channel")))
    'rows.scale' … apart from 'rows.amax'
cast(X, rows=Target("tensor", amax=ones(1)), matrices=2)  argument 'rows.amax': expected shape [2]
cast(STACK, **BOTH, matrices=0)
    argument 'matrices': expected a number from 1 on … got 0
cast(STACK, transposed="1x128", matrices=3, offsets=ints(0, 390))
    argument 'offsets': expected it to be omitted beside 'matrices'
cast(STACK, **UNIT, matrices=Rows(ints(0)))
    argument 'matrices.offsets': expected int32 [matrices + 1], … got (1,)
cast(STACK, **UNIT, matrices=Rows(ints(0, 3, 1, 4)))
    argument 'matrices.offsets': expected entries that begin at 0, do not decrease … 1 at [2]
cast(STACK, **UNIT, matrices=Rows(np.zeros(4, np.int64)))
    argument 'matrices.offsets': expected dtype int32
cast(STACK, **UNIT, matrices=Rows(ints(0, 0, 0, 0, 0)))
    argument 'matrices': expected a number from 1 on that divides 390 rows, got 4
cast(Activated(STACK), **UNIT, matrices=Rows(ints(0, 0, 0, 0)))
    argument 'matrices': expected None, as the source is Activated
cast(ActivationGradient(X, X, "silu"), **BOTH, matrices=3)
    argument 'matrices': expected None, as the source is ActivationGradient
cast(STACK, transposed=Target("1x128", out=cast(STACK, **BOTH).transposed), matrices=3)
    argument 'transposed': expected shape [3, 200, 130], got [200, 390]
cast(X, **BOTH, offsets=np.zeros(3, np.int64))
    argument 'offsets': expected dtype int32, got int64
cast(X, **BOTH, offsets=ints(0))  argument 'offsets': expected int32 [groups + 1]
cast(X, **BOTH, offsets=ints(0, 20, 10))
    argument 'offsets': expected entries that begin at 0 … got 10 at [2]
cast(X, rows="128x128", transposed="128x128", offsets=ints(0, 10, 130))
    argument 'rows': expected granularity tensor, channel or 1x128 beside 'offsets'
cast(X, **BOTH, columns="sums", offsets=ints(0, 10, 130))
    argument 'columns': expected it to be omitted beside
cast(Activated(X), **UNIT, offsets=ints(0, 10, 130))
    argument 'offsets': expected None without a transposed target
cast(Gathered(X, PLACES[:, None]), **BOTH)
    argument 'sources': expected int32 [rows], got (5, 1)
cast(Gathered(X, PLACES + 260, slots=2), **BOTH)
    argument 'sources': expected places in 130 rows of 2 slots, or -1, got 260
cast(Gathered(X, PLACES, slots=2.0), **BOTH)  argument 'slots': expected a whole number, got 2.0
cast(Gathered(X, PLACES, slots=0), **BOTH)  argument 'slots': expected 1 to 2147483647, got 0
cast(Gathered(X, PLACES, slots=2, factors=ones(130, 3)), **BOTH)
    argument 'factors': expected shape [130, 2], got [130, 3]
cast(Gathered(X, PLACES, factors=ones(130, 1), transposed_factors=ones(130, 1)), **BOTH)
    argument 'transposed_factors': expected it to be omitted beside factors, got
cast(Gathered(X, PLACES, transposed_factors=ones(130, 1)), **BOTH, columns="sums")
    argument 'transposed_factors': expected it to be omitted with reductions of columns, got
cast(Gathered(X, PLACES, slots=2, transposed_factors=ones(130, 1)), **BOTH)
    argument 'transposed_factors': expected shape [130, 2], got [130, 1]
cast(Activated(SMALL, "tanh"), **UNIT)  activation 'tanh' is not one of: swiglu
cast(Activated(SMALL, layout="thirds"), **UNIT)  gate layout 'thirds' is not one of: halves
cast(Activated(SMALL[:, :7]), **UNIT)  argument 'x': expected an even last dimension
cast(Activated(SMALL[0]), **UNIT)  argument 'x'
cast(Activated(SMALL.astype("i4")), **UNIT)  argument 'x'
cast(Activated(SMALL, dtype="float32"), **UNIT)  'source.dtype': expected None
cast(Activated(fp8(4, 8, 2)), **UNIT)
    argument 'x.scale': expected shape [4, 1] for granularity 1x128
cast(Activated(fp8(4, 8, granularity="64")), **UNIT)  granularity '64' is not one of
cast(Activated(fp8(4, 8, dtype="f4")), **UNIT)  argument 'x': expected dtype e4m3 or e5m2
cast(Activated(fp8(4, 7)), **UNIT)  argument 'x': expected an even last dimension
cast(Activated(fp8(4, 8), dtype="e4m3"), **UNIT)
    'source.dtype': expected one of float32, float16
cast(ActivationGradient(SMALL, SMALL), **UNIT)  argument 'gradient': expected shape [4, 4]
cast(ActivationGradient(HALF.astype("f2"), SMALL), **UNIT)
    argument 'gradient': expected dtype float32
cast(ActivationGradient(SMALL, fp8(4, 8)), **UNIT)  argument 'gradient': expected shape [4, 4]
cast(ActivationGradient(HALF.astype(E4M3), fp8(4, 8)), **UNIT)
    argument 'gradient': expected dtype float32
"""
ROWS, PLACES, SMALL = ones(130), ints(0, 0, 0, 0, 0), ones(4, 8)
HALF = SMALL[:, :4]


@table(CAST)
def test_cast(call, message):
    check(call, message, globals())


JOBS = """
CastJob(X)  argument 'rows': expected a Target here, or for 'transposed'
CastJob(X, "1x128")  argument 'rows': expected a Target with 'out', got str
CastJob(X, Target("1x128"))  argument 'rows': expected a Target with 'out'
CastJob(X, Target("1x128", out=SOUND.out, amax=ones(1)))
    argument 'rows.amax': expected None: cast() takes one
CastJob(X, Target("channel", out=SOUND.out))
    argument 'rows.out': expected codes and scales of the format: e4m3 channel
CastJob(X, SOUND, Target("1x128 te", out=cast(X, **BOTH).transposed))  argument 'transposed
CastJob(X[:128], SOUND)  argument 'rows': expected shape [128, 300], got [130, 300]
CastJob(X, SOUND, matrices=4)  argument 'matrices': expected a number from 1
CastJob(X.astype(float), SOUND)  argument 'x': expected
"""
SOUND = Target("1x128", out=quantize(X))


@table(JOBS)
def test_jobs_of_cast_many(call, message):
    check(f"cast_many([CastJob(X, SOUND), {call}])", f"job 1: {message}", globals())


def test_cast_many():
    check("cast_many([CastJob(X, SOUND, matrices=Rows(ints(0, 0)))])", "'matrices'", globals())


NORMS = """
Normed(SMALL, kind="batch")  norm 'batch' is not one of: rms, layer
Normed(SMALL, epsilon=-1.0)  argument 'epsilon': expected a finite number of at least 0, got -1
Normed(SMALL, epsilon=np.nan)  argument 'epsilon': expected a finite number of at least 0
Normed(SMALL, epsilon="small")  argument 'epsilon': expected a number, got 'small'
Normed(SMALL.astype("i4"))  argument 'x': expected one of float32, float16, bfloat16
Normed(SMALL[0])  argument 'x': expected a matrix
Normed(SMALL.T)  argument 'x': expected contiguous columns
Normed(SMALL, SMALL)  argument 'weight': expected a vector
Normed(SMALL, ones(7))  argument 'weight': expected shape [8], got [7]
Normed(SMALL, ones(8, dtype="f2"))  argument 'weight': expected dtype float32
Normed(SMALL, ones(16)[::2])  argument 'weight': expected a contiguous vector
Normed(SMALL, [1.0])  argument 'weight': expected a NumPy array
Normed(SMALL, bias=ones(1))  argument 'bias': expected shape [8]
Normed(SMALL, residual=SMALL[:3])  argument 'residual': expected shape [4, 8], got [3, 8]
Normed(SMALL, residual=SMALL.astype("f2"))
    argument 'residual': expected dtype float32, got float16
Normed(SMALL, ada_scale=ones(3, 8))
    argument 'ada_scale': expected a number of rows that divides the 4 of x
Normed(SMALL, ada_scale=ones(0, 8))
    argument 'ada_scale': expected a number of rows that divides the 4 of x
Normed(SMALL, ada_scale=ones(2, 7))  argument 'ada_scale': expected 8 columns, got 7
Normed(SMALL, ada_shift=ones(8))  argument 'ada_shift': expected a matrix
Normed(SMALL, ada_scale=ones(2, 8), ada_shift=ones(4, 8))
    argument 'ada_shift': expected 2 rows, as 'ada_scale', got 4
"""


@table(NORMS)
def test_norms(call, message):
    for operation in (lambda source: cast(source, **UNIT), norm):
        check(f"operation({call})", message, globals() | {"operation": operation})


OTHERS = """
norm(SMALL)  argument 'source': expected an ops.Normed
norm_gradient(SMALL, SMALL, ones(4), kind="layer")
    argument 'mean': expected one for a LayerNorm, got none
norm_gradient(SMALL, SMALL, ones(4), ones(4))
    argument 'mean': expected it to be omitted for an RMSNorm, got one
norm_gradient(SMALL.astype(float), SMALL, ones(4))
    argument 'gradient': expected one of float32, float16, bfloat16
norm_gradient(SMALL, SMALL[:, :7], ones(4))  argument 'x': expected shape [4, 8], got [4, 7]
norm_gradient(SMALL, SMALL.astype("f2"), ones(4))
    argument 'x': expected dtype float32, got float16
norm_gradient(SMALL, SMALL, ones(3))  argument 'rstd': expected shape [4], got [3]
norm_gradient(SMALL, SMALL, ones(4, dtype="f2"))  argument 'rstd': expected dtype float32
norm_gradient(SMALL, SMALL, ones(4), weight=ones(9))
    argument 'weight': expected shape [8], got [9]
norm_gradient(SMALL, SMALL, ones(4), residual_gradient=SMALL[:2])
    argument 'residual_gradient': expected shape [4, 8]
norm_gradient(SMALL, SMALL, ones(4), ada_scale=ones(3, 8))
    argument 'ada_scale': expected a number of rows that divides the 4
rotary(ones(9, 4, 63), ones(9, 63), ones(9, 63))  argument 'x': expected an even
rotary(ones(9, 64, 4).swapaxes(1, 2), TABLE, TABLE)  argument 'x': expected a contiguous last
rotary(ones(9, 4, 64), TABLE[:8], TABLE)  argument 'cos': expected
rotary(ones(9, 4, 64), TABLE, TABLE.astype("f2"))  argument 'sin': expected
rotary(ones(9, 4, 64, dtype="i4"), TABLE, TABLE)  argument 'x'
rotary(3, TABLE, TABLE)  argument 'x'
as_words(CODES[:, :22])
    argument 'tensor': expected whole words of 4 e4m3 numbers, … divisor
as_words(CODES.T)  got this: To change to a dtype of a different size, the last
as_words(CODES.reshape(-1)[:24].reshape(4, 6)[:, :4])  got this: strides (6, 1) at address
as_words(unaligned(16, E4M3))  argument 'tensor': expected whole words of 4 e4m3 numbers
as_words(WORDS)  argument 'tensor': expected one of e4m3, e5m2, float16
as_words(CODES[0, 0, ...])  got this: Changing the dtype of a 0d array
from_words(unaligned(4, np.int32), "e4m3")
    argument 'words': expected whole words of 4 e4m3 numbers
from_words(WORDS.astype(np.int64), "e4m3")
    argument 'words': expected words in int32, uint32 or float32, got int64
from_words(WORDS[:, ::2], "e4m3")  got this: To change to a dtype of a diff
from_words(WORDS, "bfloat16")
    argument 'format': expected one of e4m3, e5m2, float16, got 'bfloat16'
unpack(CODES, "e4m3")  argument 'words': expected words in int32
unpack(WORDS, "e4m3", dtype="e5m2")
    argument 'dtype': expected one of float32, float16, bfloat16
pack(ones(2, 3), "float16")
    argument 'x': expected whole words of 2 float16 numbers
pack(CODES, "e4m3")  argument 'x': expected one of float32, float16, bfloat16
pack([1.0], "e4m3")
    argument 'x': expected a NumPy array or a torch tensor, got builtins.list
pack(ones(4), "e4m3", overflow="wrap")  overflow
"""
TABLE = ones(9, 64)
CODES, WORDS = np.zeros((4, 24), E4M3), np.zeros((4, 8), np.int32)


@table(OTHERS)
def test_others(call, message):
    check(call, message, globals())
