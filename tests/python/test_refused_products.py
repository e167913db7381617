"""Refusals of products, attention and routing: each bad argument gets its own clear error."""

import ml_dtypes
import numpy as np
from octofold import Rows, ScaledTensor, attention, quantize

from tests.python import attention_cases
from tests.python.refusals import check, ints, ones, table

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
M, N, K = 5, 7, 300


def with_data(x, data):
    return ScaledTensor(data, x.scale, x.granularity)


def with_scale(x, scale, granularity=None):
    return ScaledTensor(x.data, scale, granularity or x.granularity)


def read_only(array):
    array.flags.writeable = False
    return array


GEMM = """
gemm(A.data, B)
    argument 'a': expected dtype float32 or float16 or bfloat16, got e4m3
gemm(A, None)  argument 'b': expected a ScaledTensor, got NoneType
gemm(A, quantize(ones(N, K + 1)))  argument 'b': expected K = 300 … got 301
gemm(with_scale(A, A.scale, "128x128"), B)
    argument 'a.scale': expected shape [1, 3] for granularity 128x128 of 5×300 codes
gemm(with_scale(A, A.scale.astype(float)), B)  argument 'a.scale': … dtype
gemm(with_scale(A, None), B)  argument 'a.scale': expected … got None
gemm(with_data(A, ones(M, K)), B)  argument 'a': expected dtype e4m3
gemm(A, ScaledTensor(B.data, B.scale, None))  argument 'b.granularity': expected text
gemm(A, B, out=ones(N, M))  argument 'out': expected shape [5, 7]
gemm(A, B, out=ones(M, N, dtype=float))  argument 'out': expected dtype
gemm(A, B, out=ones(N, M).T)  argument 'out': expected contiguous columns
gemm(A, B, out=read_only(ones(M, N)))  argument 'out': expected a writable
gemm(A, B, out=[0])  argument 'out': expected a NumPy array … got … list
gemm(A, B, out=C, out_dtype="float16")
    argument 'out_dtype': expected float32, as is 'out', got 'float16'
gemm(A, B, out_dtype="e4m3")  argument 'out_dtype': expected one of float32
gemm(A, B, fast_accumulation="no")  argument 'fast_accumulation': expected True
gemm(A, B, fast_accumulation=True)  argument 'fast_accumulation': expected fal
gemm(A, B, c=ones(M, N + 1))  argument 'c': expected shape
gemm(A, B, c=C.astype(np.float16))  argument 'c': expected dtype
gemm(A, B, bias=ones(M))  argument 'bias': expected shape [7]
gemm(A, B, bias=ones(1, N))  argument 'bias': expected a vector
gemm(A, B, bias=ones(2 * N)[::2])  argument 'bias': expected a contiguous
gemm(with_data(A, MEMORY[: M * K].view(E4M3).reshape(M, K)), B, out=IN_MEMORY)
    argument 'out': expected memory of its own, apart from 'a'
gemm(A, B, out=ONE_MORE[1:], c=ONE_MORE[:-1])
    argument 'out': expected memory of its own, apart from 'c'
gemm(A, B, arrivals=(ints(1), 0))  argument 'arrivals': expected an Arrivals, got tuple
gemm(A, B, arrivals=Arrivals(ints(*[1] * 5), 5))
    argument 'arrivals.own': expected the number of one of 5 shards, got 5
gemm(A, B, arrivals=Arrivals(ints(*[1] * 5), 0.5))
    argument 'arrivals.own': expected a whole number or None, got 0.5
gemm(A, B, arrivals=Arrivals(ints(1, 1)))
    argument 'arrivals.flags': expected as many as divide 5 rows of 'a', got 2
gemm(A, B, arrivals=Arrivals(ones(5)))  argument 'arrivals.flags': expected dtype int32
gemm(A, B, arrivals=Arrivals(ints([1])))  argument 'arrivals.flags': expected a vector
gemm(A, B, arrivals=Arrivals(ints(*[1] * 10)[::2]))
    argument 'arrivals.flags': expected a contiguous vector
gemm(A, B, arrivals=Arrivals([1, 1]))  argument 'arrivals.flags': expected
gemm(X, B, arrivals=Arrivals(ints(1)))
    argument 'arrivals': expected it to be omitted beside an 'a'
gemm(X[0], B)  argument 'a': expected a matrix
gemm(X.T, B)  argument 'a'
gemm(None, B)  argument 'a'
gemm(X, X)  argument 'b': expected a ScaledTensor, got ndarray
gemm(X, quantize(ones(N, 128), "128x128"))
    argument 'b': expected K = 300 columns as in 'a', got 128
gemm(X, with_data(B, ones(N, K)))  argument 'b': expected dtype e4m3
gemm(X, with_scale(B, B.scale[:, :1]))  argument 'b.scale': expected shape
gemm(X, B, bias=ones(5))  argument 'bias': expected shape [7]
gemm(X, B, bias=ones(N, dtype="f2"))  argument 'bias': expected dtype bfloat16 or float32
gemm(X, B, out_dtype="e4m3")
    argument 'out_dtype': expected one of float32, float16, bfloat16
gemm(X, B, out=ones(M, N - 1))  argument 'out': expected shape [5, 7]
gemm(X, B, out=ones(M, N, dtype=E4M3))
    argument 'out': expected dtype bfloat16 or float16 or float32
gemm(X, B, fast_accumulation=True)  argument 'fast_accumulation'
gemm(X, B, format="float16")  argument 'format': expected at most one word of each kind
gemm(X, B, format="channel")  argument 'format': expected one of granularity 1x128
gemm(X, B, format=3)  argument 'format': expected a Format or a text, got 3
gemm(X, B, c=C)  argument 'c': expected it to be omitted beside an 'a'
gemm(A, B, format="e5m2")  argument 'format': expected it to be omitted for an 'a'
"""
A, B = quantize(ones(M, K)), quantize(ones(N, K), "128x128")
C, X = ones(M, N), ones(M, K, dtype=ml_dtypes.bfloat16)
MEMORY, ONE_MORE = np.zeros(4096, np.uint8), ones(M + 1, N)
IN_MEMORY = MEMORY[1000 : 1000 + 4 * M * N].view(np.float32).reshape(M, N)


@table(GEMM)
def test_gemm(call, message):
    check(call, message, globals())


GATED = """
gated_gemm(G.data, W)  argument 'a': expected a ScaledTensor, got ndarray
gated_gemm(G, None)  argument 'b': expected a ScaledTensor, got NoneType
gated_gemm(W, W)  argument 'a': expected scales of granularity 1x128, got 128x128
gated_gemm(with_data(G, ones(5, 256)), W)  argument 'a': expected dtype e4m3 or e5m2
gated_gemm(G, G)  argument 'b': expected scales of granularity 128x128, got 1x128
gated_gemm(G, quantize(ones(255, 256), "128x128"))
    argument 'b': expected an even number of rows
gated_gemm(G, quantize(ones(256, 128), "128x128"))
    argument 'b': expected K = 256 columns as in 'a', got 128
gated_gemm(G, W, activation="silu")
    argument 'activation': expected one of swiglu, geglu-tanh, geglu, swiglu-oss
gated_gemm(G, W, activation="tanh")  activation 'tanh' is not one of: swiglu
gated_gemm(G, W, activation=3)  argument 'activation': expected text
gated_gemm(G, W, format="bfloat16")  argument 'format': expected at most one word of each kind
gated_gemm(G, W, format="tensor")  argument 'format': expected one of granularity 1x128
gated_gemm(G, W, out=G)  argument 'out': expected shape [5, 128], got [5, 256]
gated_gemm(G, W, out=with_data(G, G.data[:, :128]))  argument 'out.scale': expected
gated_gemm(G, W, out=ScaledTensor(ones(5, 128), G.scale[:, :1], "1x128"))
    argument 'out': expected
gated_gemm(G, W, out=quantize(ones(5, 128), "tensor"))  argument 'out.scale': exp
gated_gemm(G, STACK, Masked(ints(0, 2)))  argument 'groups': expected Rows(offsets), which
grouped_gemm(FOUR, STACK, Rows(ints(1, 2, 4)))
    argument 'groups.offsets': expected entries that begin at 0 … 4 rows, got 1
grouped_gemm(FOUR, STACK, Rows(ints(0, 3, 2)))
    argument 'groups.offsets': expected entries … 4 rows, got 2
grouped_gemm(FOUR, STACK, Rows(ints(0, 3, 5)))
    argument 'groups.offsets': expected entries … 4 rows, got 5
grouped_gemm(FOUR, STACK, Rows(ints(0, 3)))  argument 'groups.offsets': expected shape [3]
grouped_gemm(FOUR, STACK, Rows(ones(3)))  argument 'groups.offsets': expected dtype int32
grouped_gemm(FOUR, STACK, ints(0, 2, 4))  argument 'groups': expected Rows(offsets), Masked
grouped_gemm(FOUR, FLAT, TWO)  argument 'b': expected 3 dimensions
grouped_gemm(FOUR, with_scale(STACK, STACK.scale[:1]), TWO)  argument 'b.scale': expected shape
grouped_gemm(FOUR, STACK, TWO, bias=ones(1, 8))  argument 'bias': expected shape
grouped_gemm(FOUR, FOUR, Depth(ints(0, 2, 4)))  group_columns
grouped_gemm(quantize(ones(40, 384)), quantize(ones(40, 384)), Depth(ints(0, 5), "tight"))
    argument 'groups.offsets': … 128, got 5 at [1]
grouped_gemm(ROOMS, STACK, Masked(ints(0, 5)))
    argument 'groups.counts': expected entries from 0 to 4, got 5
grouped_gemm(ROOMS, STACK, Masked(ints(0, 1), 9))
    argument 'groups.expected_rows': expected from 0 to 4, got 9
grouped_gemm(ROOMS, STACK, Masked(ints(0, 1)), c=ones(2, 4, 8))
    argument 'c': expected it to be omitted beside MaskedGroups
dot(V, V[:7])  argument 'b': expected K = 300, as 'a' has, got K = 7
dot(V.reshape(2, 150), V)  argument 'a': expected a vector
dot(V[0, ...], V)  argument 'a': expected a vector
dot(1.5, V)  argument 'a': expected a NumPy array
dot(V, 1.5)  argument 'b': expected a NumPy array
dot(V[::2], V[:150])  argument 'a': expected contiguous
dot(V.astype(np.int32), V)  argument 'a': expected dtype
dot(V, V.astype(np.float64))  argument 'b': expected dtype
dot(V, ScaledTensor(V.astype(E4M3), ones(2), "1x128"))  argument 'b.scale': expected shape
dot(V, ScaledTensor(V, ones(3), "1x128"))  argument 'b': expected dtype e4m3 or e5m2
dot(V, V, out=ones(2))  argument 'out': expected one element
dot(V, V, out=ones(1, dtype=float))  argument 'out': expected dtype float32
dot(V, V, out=V[:1])  argument 'out': expected memory of its own
"""
G, W, V = quantize(ones(5, 256)), quantize(ones(256, 256), "128x128"), ones(300)
FLAT = quantize(ones(16, 32), "tensor")
STACK = quantize(ones(2, 8, 32), "128x128", matrices=2)
FOUR, ROOMS, TWO = quantize(ones(4, 32)), quantize(ones(2, 4, 32)), Rows(ints(0, 2, 4))


@table(GATED)
def test_gates_groups_and_dots(call, message):
    check(call, message, globals())


WEIGHT_ONLY = """
gemm_weight_only(H, H)  argument 'w': expected a ScaledTensor
gemm_weight_only(H, with_scale(W8, W8.scale[:0]))  argument 'w.scale': expected
gemm_weight_only(H[:, :7], W8)  argument 'x': expected
gemm_weight_only(H32[:, :7], W8)  argument 'x': expected
gemm_weight_only(ones(17, 30), W8)  argument 'x': expected at most 16 rows of float32
gemm_weight_only(H[:, ::2], W8)  argument 'x': expected contiguous columns
gemm_weight_only(with_data(W8, H), W8)  argument 'x': expected dtype e4m3
gemm_weight_only(ScaledTensor(W8.data[:2], ones(2, 2), "1x128"), W8)
    argument 'x.scale': expected shape [2, 1]
gemm_weight_only(H, with_data(W8, H))  argument 'w': expected dtype e4m3
gemm_weight_only(H.astype(np.int32), W8)  argument 'x': expected
gemm_weight_only(1.5, W8)  argument 'x'
gemm_weight_only(H32, W8, bias=ones(20))  argument 'bias': expected it to be omitted
gemm_weight_only(H, W8, bias=H[0, :7])  argument 'bias': expected
gemm_weight_only(H, W8, bias=np.zeros(20))  argument 'bias': expected
gemm_weight_only(H, W8, out_dtype="bfloat16")  argument 'out': expected
gemm_weight_only(H[0], W8, out_dtype="bfloat16")  argument 'out': expected
gemm_weight_only(H32, W8, out_dtype="e4m3")  argument 'out_dtype': expected one of
gemm_weight_only(H, W8, out=ones(3, 20, dtype="f2"))  argument 'out': expected
gemm_weight_only(H32, W8, out=ones(2, 19))  argument 'out'
gemm_weight_only(ones(20, 1040, dtype="f2"), DEEP, out=ones(20, 60))  argument 'out'
gemm_weight_only(H, W8, out=H[:, :20])  argument 'out': expected memory of its own
gemm_weight_only(H32, W8, out=H32[:, :20])  argument 'out': expected memory
gemm_weight_only(H32, W8, out=ones(2, 20), out_dtype="float16")
    argument 'out_dtype': expected float32, as is 'out'
gemm_weight_only_gradient(H, W8)  argument 'gradient': expected
gemm_weight_only_gradient(H32[:, :20], W8)  argument 'gradient': expected
gemm_weight_only_gradient(H[:, :20], 3)  argument 'w': expected a ScaledTensor
gemm_weight_only_gradient(H[:, :20], with_data(W8, H))  argument 'w': expected dtype e4m3
gemm_weight_only_gradient(H[:, :20], W8, out=ones(2, 20))
    argument 'out': expected shape [2, 30]
gemm_weight_only_gradient(H[:, :20], W8, out_dtype="bfloat16")
    argument 'out': expected dtype float16 or float32
grouped_gemm_weight_only(R, R, TWO)  argument 'w': expected a ScaledTensor
grouped_gemm_weight_only(R, STACK, ints(0, 2, 4))
    argument 'groups': expected Rows(offsets) or Masked
grouped_gemm_weight_only(R[None], STACK, TWO)  argument 'x': expected 2 dimensions
grouped_gemm_weight_only(R, STACK, Rows(ints(0, 2)))  argument 'groups.offsets': expected shape
grouped_gemm_weight_only(R, STACK, Rows(ints(0, 3, 2)))  argument 'groups.offsets': expected
grouped_gemm_weight_only(R[:, :7], STACK, TWO)  argument 'x': expected K = 32
grouped_gemm_weight_only(R.astype(np.float32), STACK, TWO)  argument 'x': expected
grouped_gemm_weight_only(R, FLAT, TWO)  argument 'w': expected 3 dimensions
grouped_gemm_weight_only(R, with_scale(STACK, STACK.scale[:1]), TWO)
    argument 'w.scale': expected shape
grouped_gemm_weight_only(R, STACK, TWO, bias=R[:1, :8])  argument 'bias': expected shape
grouped_gemm_weight_only(R, STACK, TWO, out=R[:, :8])  argument 'out': expected memory
grouped_gemm_weight_only(R, STACK, TWO, out=R[:, :7].copy())  argument 'out': expected shape
grouped_gemm_weight_only(R, STACK, TWO, out_dtype="bfloat16")  argument 'out': expected dtype
grouped_gemm_weight_only(Gathered(R, PLACES), STACK, Masked(ints(0, 2)))
    argument 'x': expected an array beside Masked, got Gathered
grouped_gemm_weight_only(Gathered(R, PLACES + 1), STACK, TWO)
    argument 'sources': expected places in 4 rows of 1 slots, or -1, got 4
grouped_gemm_weight_only(Gathered(R, PLACES, factors=R[:, :1]), STACK, TWO)
    argument 'factors': expected dtype float32
grouped_gemm_weight_only(Gathered(R, PLACES, transposed_factors=R[:, :1]), STACK, TWO)
    argument 'transposed_factors': expected it to be omitted, as there is no transpose
grouped_gemm_weight_only(R.reshape(2, 2, 32), STACK, Masked(ints(0, 3)))
    argument 'groups.counts': expected
grouped_gemm_weight_only(R.reshape(2, 2, 32), STACK, Masked(ints(0, 2), 3))
    argument 'groups.expected_rows': expected from 0 to 2, got 3
grouped_gemm_weight_only_gradient(R, STACK, TWO)
    argument 'gradient': expected N = 8 columns
grouped_gemm_weight_only_gradient(Gathered(R, PLACES), STACK, Masked(ints(0, 2)))
    argument 'gradient': expected an array beside Masked
"""
W8, DEEP = quantize(ones(20, 30), "tensor"), quantize(ones(70, 1040), "channel")
H, H32, R = ones(2, 30, dtype="f2"), ones(2, 30), ones(4, 32, dtype="f2")
PLACES = ints(0, 1, 2, 3)


@table(WEIGHT_ONLY)
def test_products_with_fp8_weights(call, message):
    check(call, message, globals())


ROUTING = """
top_k(LOGITS, 0)  argument 'k': expected from 1 to the number of experts, got 0
top_k(LOGITS, 17)  argument 'k': expected from 1 to the 16 experts, got 17
top_k(LOGITS, 2.0)  argument 'k': expected a whole number, got 2.0
top_k(LOGITS, "2")  argument 'k': expected a whole number, got '2'
top_k(LOGITS[0], 2)  argument 'logits': expected a matrix
top_k(IDS, 2)  argument 'logits': expected dtype float32 or float16 or bfloat16
top_k(LOGITS, 2, scoring="relu")  scoring 'relu' is not one of: softmax, sigm
top_k(LOGITS, 2, groups=2)  argument 'groups': expected 1 for softmax, got 2
top_k(LOGITS, 2, scoring="sigmoid", groups=5)
    argument 'groups': expected a divisor of the 16 experts, got 5
top_k(LOGITS, 3, scoring="sigmoid", groups=8)
    argument 'top_groups': expected so many groups that they hold 3 experts, got 1
top_k(LOGITS, 2, bias=LOGITS[0])  argument 'bias': expected it to be omitted for softmax
top_k(LOGITS, 2, scoring="sigmoid", bias=LOGITS[0, :5])
    argument 'bias': expected shape [16], got [5]
top_k_gradient(LOGITS[:, :2], LOGITS, IDS + 16)
    argument 'ids': expected numbers from -1 to 15, got 16 at [0, 0]
top_k_gradient(LOGITS[:, :3], LOGITS, IDS)  argument 'ids': expected shape [5, 3], got [5, 2]
sort_by_expert(IDS - 2, 16)  argument 'ids': expected numbers from -1 to 15, got -2 at [0, 0]
sort_by_expert(IDS, -1)  argument 'experts': expected a number from 0 on
sort_by_expert(IDS, None)  argument 'experts': expected a whole number
sort_by_expert(IDS[0], 4)  argument 'ids': expected a matrix
sort_by_expert(IDS.astype("i8"), 4)  argument 'ids': expected dtype int32
combine(Y, IDS + 10)  argument 'positions': expected numbers from -1 to 9, got 10 at [0, 0]
combine(Y, IDS, LOGITS)  argument 'weights': expected shape [5, 2], got [5, 16]
combine(Y, IDS, c=Y)  argument 'c': expected shape [5, 8], got [10, 8]
combine(Y, IDS, out_dtype="e4m3")  argument 'out_dtype': expected one of
combine(Y, IDS, out=Y[:5].copy(), out_dtype="bfloat16")
    argument 'out_dtype': expected float32, as is 'out'
combine(Y, IDS, out=Y[:5])  argument 'out': expected memory of its own
combine_gradient(LOGITS, Y, IDS)  argument 'y': expected shape [10, 16], got [10, 8]
activation_dots(Y, Y, IDS)  argument 'x': expected shape [10, 16], got [10, 8]
activation_dots(Y, Y, IDS, activation="tanh")  activation 'tanh' is not one of
"""
LOGITS, IDS, Y = ones(5, 16), np.zeros((5, 2), np.int32), ones(10, 8)


@table(ROUTING)
def test_routing(call, message):
    check(call, message, globals())


ATTENTION = """
attend(window=(5, 2), causal=True)  'window': expected no keys behind
attend(window=(5,))  'window': expected None, or two whole numbers
attend(window=3)  'window': expected None, or two whole numbers
attend(window=(-2, 0))  'window': expected None, or two whole numbers
attend(softmax_scale=0)  'softmax_scale': expected None, or a number other
attend(softmax_scale=1e-50)  'softmax_scale': expected None, or a number other
attend(softmax_scale="1")  'softmax_scale': expected a number
attend(compute="fp16")  compute 'fp16' is not one of: exact, fp8
attend(compute=8)  'compute': expected text
attend(q=1.5)  'q': expected
attend(q=DENSE["q"][0, 0])  'q': expected [batch, queries, heads, head_size] or [total
attend(q=ones(2, 3, 4, 64))  'q': expected one of float16, bfloat16, got
attend(k=None)  'k': expected
attend(PAGED, key_counts=np.int64([20, 9]))  'key_counts'
attend(PAGED, page_table=PAGED["page_table"][0])  'page_table'
attend(PACKED, query_offsets=ints(0, 3))  _offsets'
attend(out=ones(2, 3, 4, 64))  'out': expected
"""
RNG = np.random.default_rng(0)
DENSE = attention_cases.dense(RNG, 2, 3, 20)
PACKED = attention_cases.packed(RNG, [3, 2], [20, 9])
PAGED = attention_cases.paged(RNG, 2, [20, 9])


def attend(problem=DENSE, **changes):
    return attention(**(problem | changes))


@table(ATTENTION)
def test_attention(call, message):
    check(call, f"attention: argument {message}" if message[0] == "'" else message, globals())
