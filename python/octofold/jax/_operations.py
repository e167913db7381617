"""The operations of `octofold` on JAX's arrays: the same arguments but `out` and `stream`."""

from dataclasses import replace
from typing import Any, TypeAlias

import jax

from .._core.formats import DTypeLike, FormatLike
from .._core.scaled_tensor import ScaledTensor
from .._ops import attention as _attention
from .._ops import gemm as _gemm
from .._ops import gemm_weight_only as _gemm_weight_only
from .._ops import grouped_gemm as _grouped_gemm
from .._ops import quantize as _quantize
from .._ops.cast_sources import Gathered
from .._ops.grouped_gemm import Groups, Masked, Rows
from ._calls import array_of

Array: TypeAlias = jax.Array


def quantize(
    x: Array,
    format: FormatLike = "1x128",
    *,
    scale: Array | None = None,
    matrices: int | None = None,
) -> ScaledTensor:
    """Cast a matrix to FP8 with one FP32 scale for each unit of its granularity.

    x: [..., cols] float32, float16 or bfloat16. Leading dimensions are more rows.
    format: a Format, or words such as "128x128", "e5m2 channel" or "1x128 torchao".
    scale: static scales, float32, in the shape of octofold.ops.scale_shape(); None: computed.
    matrices: the number of matrices if x is a stack of them, as the weights of experts
        [experts, out, in] are; each is cast as if it were alone.

    Returns a ScaledTensor of JAX's arrays: codes [..., cols], float8_e4m3fn or float8_e5m2, and
    their scales. They have the bytes that octofold.quantize() gives for NumPy. There is no
    gradient: differentiation through it raises UnsupportedError, as jax.vmap does.
    Raises InvalidArgumentError, which names the argument, as the program is traced.
    """
    return _quantize.quantize(_of_jax("quantize", "x", x), format, scale=scale, matrices=matrices)


def gemm(
    a: Array | ScaledTensor,
    b: ScaledTensor,
    *,
    c: Array | None = None,
    bias: Array | None = None,
    format: FormatLike = "1x128",
    out_dtype: DTypeLike | None = None,
    fast_accumulation: bool = False,
    batch_invariant: bool = False,
) -> Array:
    """Compute the FP8 product a[..., K] · b[N, K]ᵀ (+ c[..., N]) (+ bias[N]).

    a: e4m3 or e5m2 with scales of any granularity; or a float32, float16 or bfloat16 array, which
        the product casts itself, as `format` says.
    b: e4m3 or e5m2 with scales of any granularity; two-level ones only if `a` is a ScaledTensor.
    c: [..., N], of the result's dtype or float32. None if the product casts `a`.
    bias: [N], of the result's dtype or float32.
    format: for the cast of an array `a`: a Format or its words, of granularity 1x128.
    out_dtype: bfloat16 (the default), float16 or float32.
    fast_accumulation: let a GPU sum all of K in the tensor core (tensor and channel scales only).
    batch_invariant: a row of the result depends on that row of `a` alone.

    Returns [..., N]. octofold.gemm() says how it is summed and rounded. Errors are raised as by
    quantize(); what only the GPU refuses comes from XLA, as the program runs.
    """
    return _gemm.gemm(
        _of_jax("gemm", "a", a),
        b,
        c=c,
        bias=bias,
        format=format,
        out_dtype=out_dtype,
        fast_accumulation=fast_accumulation,
        batch_invariant=batch_invariant,
    )


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
) -> Array:
    """A product for each group of rows, or of K, whose sizes are numbers on the device.

    | groups                        | a            | b            | result       |
    |-------------------------------|--------------|--------------|--------------|
    | Rows(offsets)                 | [M, K]       | [G, N, K]    | [M, N]       |
    | Masked(counts, expected_rows) | [G, rows, K] | [G, N, K]    | [G, rows, N] |
    | Depth(offsets, layout)        | [M, columns] | [N, columns] | [G, M, N]    |

    a, b: e4m3 or e5m2 with scales of any granularity, as in octofold.grouped_gemm().
    groups: `offsets` int32 [G + 1], `counts` int32 [G]; `expected_rows` is a number, no array.
    c: of the result's shape, of its dtype or float32. None beside Masked.
    bias: [G, N], of the result's dtype or float32. None beside Depth.
    out_dtype, fast_accumulation, batch_invariant: as in gemm().

    Rows that belong to no group are whatever memory held. Errors as in gemm(); offsets that make no
    sense are found on the CPU alone, as the program runs.
    """
    return _grouped_gemm.grouped_gemm(
        _of_jax("grouped_gemm", "a", a),
        b,
        groups,
        c=c,
        bias=bias,
        out_dtype=out_dtype,
        fast_accumulation=fast_accumulation,
        batch_invariant=batch_invariant,
    )


def gemm_weight_only(
    x: Array | ScaledTensor,
    w: ScaledTensor,
    *,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
) -> Array:
    """Compute x[..., K] · w[N, K]ᵀ (+ bias[N]) with FP8 weights, on GPUs with FP8 units or without.

    x: float16 or bfloat16; a vector [K] is one row. Up to 16 rows may also be float32, e4m3, e5m2,
        or a ScaledTensor of any granularity.
    w: e4m3 or e5m2 with scales of any granularity.
    bias: [N], of the result's dtype or float32. Only with an x of 16 bits.
    out_dtype: the dtype of x (the default; float32 where x is FP8) or float32.
    batch_invariant: a row of the result depends on that row of x alone.

    Returns [..., N]. Errors as in gemm().
    """
    x = _of_jax("gemm_weight_only", "x", x)
    return _gemm_weight_only.gemm_weight_only(
        x, w, bias=bias, out_dtype=out_dtype, batch_invariant=batch_invariant
    )


def grouped_gemm_weight_only(
    x: Array | Gathered,
    w: ScaledTensor,
    groups: Rows | Masked,
    *,
    bias: Array | None = None,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool = False,
) -> Array:
    """A product of each group of rows with FP8 weights of its own.

    x: float16 or bfloat16. Rows(offsets): [M, K], or octofold.ops.Gathered(x, sources), whose rows
        are read where they lie. Masked(counts, expected_rows): [G, rows, K].
    w: [G, N, K], e4m3 or e5m2 with scales of any granularity, as b in grouped_gemm().
    groups: as in grouped_gemm().
    bias: [G, N], of the result's dtype or float32.
    out_dtype: the dtype of x (the default) or float32.
    batch_invariant: as in gemm_weight_only().

    Returns [M, N] or [G, rows, N]. Rows that belong to no group, or come from nowhere, are whatever
    memory held. Errors as in grouped_gemm().
    """
    operation = "grouped_gemm_weight_only"
    if isinstance(x, Gathered):
        x = replace(x, x=_of_jax(operation, "x", x.x))
    else:
        x = _of_jax(operation, "x", x)
    return _gemm_weight_only.grouped_gemm_weight_only(
        x, w, groups, bias=bias, out_dtype=out_dtype, batch_invariant=batch_invariant
    )


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
) -> Any:
    """Compute softmax(softmax_scale · q · kᵀ) · v for each sequence and head, with keys and values
    in FP8.

    q: float16 or bfloat16, [batch, queries, heads, head_size], or with query_offsets
        [total_queries, heads, head_size].
    k, v: e4m3 or e5m2, [batch, keys, kv_heads, head_size]; with key_offsets [total_keys, kv_heads,
        head_size]; with page_table [pages, page_size, kv_heads, head_size]. v's last dimension may
        be another than k's.
    k_scale, v_scale: float32, the multipliers of the codes, in the shapes of octofold.attention().
    query_offsets, key_offsets: int32 [batch + 1]. key_counts: int32 [batch].
    page_table: int32 [batch, pages of a sequence].
    softmax_scale, causal, window, return_log_sum_exp, compute, batch_invariant: as in
        octofold.attention(); no arrays.

    Returns an array of q's shape, but v's last dimension, and q's dtype; with return_log_sum_exp a
    pair of it and float32
    [batch, heads, queries]. Errors as in gemm().
    """
    return _attention.attention(
        _of_jax("attention", "q", q),
        k,
        v,
        k_scale=k_scale,
        v_scale=v_scale,
        query_offsets=query_offsets,
        key_offsets=key_offsets,
        key_counts=key_counts,
        page_table=page_table,
        softmax_scale=softmax_scale,
        causal=causal,
        window=window,
        return_log_sum_exp=return_log_sum_exp,
        compute=compute,
        batch_invariant=batch_invariant,
    )


def _of_jax(operation: str, argument: str, x: Any) -> Any:
    """The first operand, by which an op is called; NumPy's arrays become JAX's."""
    if isinstance(x, ScaledTensor):
        data = _of_jax(operation, argument, x.data)
        return ScaledTensor(data, x.scale, x.granularity)
    return array_of(operation, argument, x)
