"""Attention over keys and values in FP8, and rotary position embeddings of queries and keys."""

from typing import Final

from .._core.arrays import scratch
from .._core.calls import Op
from .._core.errors import invalid_argument
from .._core.formats import WIDE, dtype_name
from .._core.frameworks import Array, Framework, StreamLike
from .._core.library import is_batch_invariant
from .._core.ops import Arrays, Options

_HALVES: Final = ("float16", "bfloat16")

# Beyond so many keys no kernel counts: what a table has room for is cut to it.
_MOST_COUNTED: Final = 2**31 - 1 - 4096


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    query_offsets: Array | None = None,
    key_offsets: Array | None = None,
    key_counts: Array | None = None,
    page_table: Array | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    return_log_sum_exp: bool = False,
    compute: str = "exact",
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: StreamLike | None = None,
) -> Array:
    """Compute softmax(softmax_scale · q · kᵀ) · v for each sequence and head, with keys and values
    in FP8.

    q: float16 or bfloat16, [batch, queries, heads, head_size], or with query_offsets
        [total_queries, heads, head_size]. head_size is a multiple of 8 from 8 to 576. heads is a
        multiple of kv_heads; head h reads the key head h // (heads // kv_heads). The last dimension
        of q, k, v and out is contiguous, and the others have any strides.
    k, v: e4m3 or e5m2, each either, of one shape: [batch, keys, kv_heads, head_size]; with
        key_offsets [total_keys, kv_heads, head_size], sequences one behind another; with page_table
        [pages, page_size, kv_heads, head_size], page_size a power of two from 16 on. Only the last
        dimension of v may be another, value_size, a multiple of 8 from 8 to 512. Where keys and
        values are one latent, v is k[..., :value_size], and a GPU's decode reads it once.
    k_scale, v_scale: float32, the multipliers of the codes; None: 1. One element; [kv_heads]; one
        for 128 keys of a sequence and a head, [batch, ceil(keys / 128), kv_heads], with key_offsets
        [total_keys // 128 + batch, kv_heads], where sequence b begins at key_offsets[b] // 128 + b;
        with page_table [pages, kv_heads]. A shape that could be two of these counts as the first.
    query_offsets, key_offsets: int32 [batch + 1]: where each sequence begins, and the end of the
        last. key_offsets needs query_offsets. Queries beyond the last end are not computed, and
        their results are not written.
    key_counts: int32 [batch]: how many keys of each sequence count. Required with page_table,
        excluded by key_offsets.
    page_table: int32 [batch, pages of a sequence]: the pages in which its keys lie, in order.
    softmax_scale: the factor of scores; None: 1 / sqrt(head_size).
    causal: query i of n sees no key behind its own place, i + keys - n: the last query is at the
        last key. The same as window=(None, 0).
    window: how many keys before its place and behind it a query sees; None or -1: all.
    return_log_sum_exp: return the pair of `out` and float32 [batch, heads, queries] (with
        query_offsets [heads, total_queries]), the natural logarithms of the sums of exp(score).
    compute: "exact", or "fp8", which allows scores to be products of FP8 codes with FP8 codes: each
        query of a head is cast to e4m3 with a scale of its own. Of normal numbers results then are
        2.6e-2 of their norm away from exact ones, and 4.8e-2 rather than 4.0e-2 from those without
        any FP8. It requires nothing: kernels without such products have exact ones. Hopper's have
        them for more than 32 queries, times the heads that share a key head, of each sequence,
        where heads are at most 128 and values at most 256; the CPU backend always does.
    batch_invariant: a row of the result, a query of a head, depends on that query and the keys and
        values that it sees alone, not on which other queries and sequences there are. Keys are
        summed in parts of a fixed number then. On a GPU one border is left: sequences with up to
        32 queries, times the heads that share a key head, have other bits than those with more;
        docs/batch-invariance.md tells what else there is to it, and what it costs. Also where
        octofold.set_batch_invariant(True) is on.
    out: where to write, of q's shape, but v's last dimension, and q's type. As in gemm(), nothing
        may require a gradient.
    stream: as in gemm().

    Codes become numbers exactly and sums are FP32; the weights of the softmax are rounded to q's
    type for the product with v. A query that sees no key has zeros, and -inf as its logarithm. The
    same input gives the same bits. There is no gradient, as in gemm(). On a GPU offsets, counts and
    tables are clamped to the sizes of the tensors, so that none leads outside; on the CPU wrong
    ones raise.

    Returns `out`, or a new array in the framework of q; with return_log_sum_exp a pair.
    Raises InvalidArgumentError, which names the argument; on a GPU UnavailableError without a
    usable driver or compiler and UnsupportedError where there are no kernels for it.
    """
    left, right = _limits(causal, window)
    inputs = (q, k, v, k_scale, v_scale, query_offsets, key_offsets, key_counts, page_table)
    batch_invariant = batch_invariant or is_batch_invariant()
    options = (_scale_or_default(softmax_scale), left, right, compute, batch_invariant)
    if out is None:
        wanted = "float32" if return_log_sum_exp else ""
        results = _ATTENTION(inputs, options, wanted, None, stream)
    else:
        shape = _shape(q)
        size = _workspace_size(_shape_of_out(shape, v), _keys_of_parts(inputs, options))
        workspace = scratch("attention", "out", out, (size,), stream)
        logarithms = None
        if return_log_sum_exp:
            logarithms = scratch("attention", "out", out, _logarithms_shape(shape), stream)
        results = _ATTENTION(inputs, options, "", (out, workspace, logarithms), stream)
    return (results[0], results[2]) if return_log_sum_exp else results[0]


def _limits(causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int, int]:
    """How many keys before and behind its place a query sees, -1 where all."""
    if window is None:
        return -1, 0 if causal else -1
    try:
        left, right = (-1 if limit is None else limit for limit in window)
        wrong = left < -1 or right < -1
    except (TypeError, ValueError):
        wrong = True
    if wrong:
        expected = "None, or two whole numbers from 0 on, None or -1 where there is no limit"
        raise invalid_argument("attention", "window", expected, repr(window))
    if causal and right > 0:
        expected = "no keys behind a query's place, as 'causal' is True"
        raise invalid_argument("attention", "window", expected, repr(window))
    return left, 0 if causal else right


def _scale_or_default(scale: float | None) -> float:
    """0 is the library's word for the default, and no scale that anybody wants; nor are those that
    are 0 in float32."""
    if scale is None:
        return 0.0
    if scale == 0 or (isinstance(scale, float) and abs(scale) <= 2.0**-150):
        expected = "None, or a number other than 0 in float32"
        raise invalid_argument("attention", "softmax_scale", expected, repr(scale))
    return scale


def _shape(q: Array) -> tuple[int, ...]:
    if not hasattr(q, "shape") or len(q.shape) not in (3, 4):
        expected = "[batch, queries, heads, head_size] or [total_queries, heads, head_size]"
        got = f"shape {tuple(q.shape)}" if hasattr(q, "shape") else repr(q)
        raise invalid_argument("attention", "q", expected, got)
    return tuple(q.shape)


def _shape_of_out(q: tuple[int, ...], v: Array) -> tuple[int, ...]:
    """q's, but v's last dimension. What is wrong with v the library says."""
    shape = getattr(v, "shape", None)
    return (*q[:-1], shape[-1]) if shape else q


def _logarithms_shape(q: tuple[int, ...]) -> tuple[int, ...]:
    *batch, queries, heads, _ = q
    return (*batch, heads, queries)


def _keys_of_parts(inputs: Arrays, options: Options) -> int | None:
    """How many keys a sequence has at most, or all have that are packed; None where the size of the
    workspace does not depend on it."""
    _, k, *_, key_offsets, _, page_table = inputs
    if not options[-1]:
        return None
    outer, *inner = getattr(k, "shape", (0, 0))
    if key_offsets is not None or not inner:
        return int(outer)
    if page_table is None:
        return int(inner[0])
    *_, pages = getattr(page_table, "shape", (0,))
    return 0 if outer == 0 else min(int(pages * inner[0]), _MOST_COUNTED)


def _workspace_size(out: tuple[int, ...], keys: int | None = None) -> int:
    """attention_workspace_size() of the library, for torch's symbolic sizes too."""
    *leading, size = out
    rows = 1
    for count in leading:
        rows *= count
    if keys is not None:
        parts = (keys + 1023) // 1024
        if parts <= 1:
            return 0
        return rows * parts * (size + 2) if rows * parts <= 1 << 17 else rows * (size + 4)
    splits = 1 if rows <= 0 else min(64, max(1, 16384 // rows))
    return 0 if splits == 1 else rows * splits * (size + 2)


def _attended(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    """`dtype` is that of log_sum_exp, nothing where it is not wanted."""
    q = inputs[0]
    shape = _shape_of_out(_shape(q), inputs[2])
    out = framework.empty(shape, dtype_name("attention", "q", q.dtype, _HALVES))
    size = _workspace_size(shape, _keys_of_parts(inputs, options))
    workspace = framework.empty((size,), "float32")
    logarithms = framework.empty(_logarithms_shape(shape), dtype) if dtype else None
    return out, workspace, logarithms


# The library takes limits of the window as two numbers, and knows no causality beside them.
_ATTENTION: Final = Op(
    "attention",
    {
        "q": Array,
        "k": Array,
        "v": Array,
        "k_scale": Array | None,
        "v_scale": Array | None,
        "query_offsets": Array | None,
        "key_offsets": Array | None,
        "key_counts": Array | None,
        "page_table": Array | None,
        "softmax_scale": float,
        "window_left": int,
        "window_right": int,
        "compute": str,
        "batch_invariant": bool,
    },
    results=("out", "workspace", "log_sum_exp?"),
    allocate=_attended,
)


def rotary(
    x: Array, cos: Array, sin: Array, *, inverse: bool = False, stream: StreamLike | None = None
) -> Array:
    """Rotate queries or keys by their positions, in one kernel: pairs of elements that lie half a
    head apart, as Llama's and transformers' rotate_half() pair them (neighbours, as in GPT-J, are
    another convention): x · cos + (-x[h:], x[:h]) · sin, with h = head_dim / 2.

    x: [tokens, heads, head_dim] or [batch, tokens, heads, head_dim], float32, float16 or bfloat16;
        head_dim is even. Only the last dimension has to be contiguous, so that any order of tokens
        and heads in memory will do.
    cos, sin: [tokens, head_dim] for all batches, or [batch, tokens, head_dim], where batch may be
        1: as transformers makes them, of x's dtype. Their halves are taken as they are.
    inverse: the transpose of the rotation. Of the gradient by the result it makes that by x. Where
        cos² + sin² = 1, and halves are equal, it is the inverse.
    stream: as in gemm().

    Arithmetic is FP32, rounded to x's dtype once; the CPU has the same bits. There is no gradient,
    as in gemm().

    Returns an array of x's shape and dtype, contiguous.
    Raises InvalidArgumentError, which names the argument.
    """
    return _ROTARY((x, cos, sin), (inverse,), "", None, stream)[0]


def _like_x(framework: Framework, inputs: Arrays, options: Options, dtype: str) -> Arrays:
    x = inputs[0]
    return (framework.empty(x.shape, dtype_name("rotary", "x", x.dtype, WIDE)),)


_ROTARY: Final = Op("rotary", rotary.__annotations__, ("y",), _like_x)
