"""Problems of attention in NumPy's arrays, and their answers in FP64, written from attention.h.

For the tests of both folders. Shares no code with the library.
"""

from typing import NamedTuple

import numpy as np

from tests.python import reference
from tests.python.reference import offsets_of

KEYS_PER_SCALE = 128


class Attended(NamedTuple):
    """The results that have to come out. magnitudes: of each element of out Σ p·|v|; terms: of each
    row the largest Σ|softmax_scale · q · k| of a score."""

    out: np.ndarray
    logarithms: np.ndarray
    magnitudes: np.ndarray
    terms: np.ndarray


def attend(
    q,
    k,
    v,
    *,
    k_scale=None,
    v_scale=None,
    query_offsets=None,
    key_offsets=None,
    key_counts=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window=None,
    compute="exact",
):
    """softmax(softmax_scale · q · kᵀ) · v, sequence by sequence."""
    q = as_codes(q) if compute == "fp8" else q.astype(np.float64)
    factor = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = (None, None) if window is None else window
    limits = [
        None if limit is None else min(limit, 2**40) for limit in (left, 0 if causal else right)
    ]
    batch = len(q) if query_offsets is None else len(query_offsets) - 1
    out = (*q.shape[:-1], v.shape[-1])
    of_rows = logarithms_shape(q.shape)
    result = Attended(np.zeros(out), np.zeros(of_rows), np.zeros(out), np.zeros(of_rows))
    places = key_offsets, key_counts, page_table
    for sequence in range(batch):
        keys = sequence_of(k, k_scale, sequence, *places)
        values = sequence_of(v, v_scale, sequence, *places)
        rows = np.s_[sequence]
        if query_offsets is not None:
            rows = np.s_[query_offsets[sequence] : query_offsets[sequence + 1]]
        of_sequence = attend_one(q[rows], keys, values, factor, limits)
        result.out[rows], result.magnitudes[rows] = of_sequence.out, of_sequence.magnitudes
        columns = np.s_[sequence] if query_offsets is None else np.s_[:, rows]
        result.logarithms[columns], result.terms[columns] = (
            of_sequence.logarithms,
            of_sequence.terms,
        )
    return result


def as_codes(q):
    """The queries' values in FP8 scores: e4m3 codes, with a scale for each row of numbers."""
    q = q.astype(np.float32)
    largest = np.maximum(abs(q).max(-1, keepdims=True), np.float32(2.0**-100))
    code = np.floor(np.frexp(largest)[0] * 16 + np.float32(0.5)) * np.float32(32)
    code = np.where(code > 448, code / 2, code)
    codes = (q * (code / largest)).astype(reference.DTYPES["e4m3"])
    return codes.astype(np.float64) * (largest / code).astype(np.float64)


def logarithms_shape(q):
    *batch, queries, heads, _ = q
    return (*batch, heads, queries)


def sequence_of(codes, scale, sequence, key_offsets, key_counts, page_table):
    """The keys, or values, of a sequence that count: [keys, kv_heads, size] in FP64."""
    pages = None if page_table is None else page_table[sequence]
    if pages is not None:
        page_size = codes.shape[1]
        pages = pages[: -(-int(key_counts[sequence]) // page_size)]
        rows = codes[pages].reshape(-1, *codes.shape[2:])
    elif key_offsets is not None:
        rows = codes[key_offsets[sequence] : key_offsets[sequence + 1]]
    else:
        rows = codes[sequence]
    if key_counts is not None:
        rows = rows[: key_counts[sequence]]
    values = rows.astype(np.float64)
    if scale is None:
        return values
    if scale.size == 1:
        return values * float(scale.reshape(()))
    if scale.ndim == 1:
        return values * scale[:, None].astype(np.float64)
    if pages is not None:
        of_keys = np.repeat(scale[pages], page_size, axis=0)
    elif key_offsets is not None:
        first = key_offsets[sequence] // KEYS_PER_SCALE + sequence
        of_keys = np.repeat(scale[first:], KEYS_PER_SCALE, axis=0)
    else:
        of_keys = np.repeat(scale[sequence], KEYS_PER_SCALE, axis=0)
    return values * of_keys[: len(rows), :, None].astype(np.float64)


def attend_one(q, keys, values, factor, limits):
    queries, heads, _ = q.shape
    count, kv_heads, _ = keys.shape
    group = heads // kv_heads
    place = np.arange(queries)[:, None] + count - queries
    seen = np.ones((queries, count), bool)
    if limits[0] is not None and limits[0] >= 0:
        seen &= np.arange(count) >= place - limits[0]
    if limits[1] is not None and limits[1] >= 0:
        seen &= np.arange(count) <= place + limits[1]
    out, magnitudes = np.zeros((2, queries, heads, values.shape[-1]))
    logarithms, terms = np.full((heads, queries), -np.inf), np.zeros((heads, queries))
    with np.errstate(invalid="ignore"):
        for head, row in np.ndindex(heads, queries):
            visible = seen[row]
            if not visible.any():
                continue
            scores = factor * keys[visible, head // group] @ q[row, head]
            largest = scores.max()
            terms[head, row] = (
                abs(factor * keys[visible, head // group]) @ abs(q[row, head])
            ).max()
            weights = np.exp(scores - largest)
            total = weights.sum()
            weights /= total
            logarithms[head, row] = largest + np.log(total)
            of_head = values[visible, head // group]
            out[row, head] = weights @ of_head
            magnitudes[row, head] = weights @ abs(of_head)
    return Attended(out, logarithms, magnitudes, terms)


def assert_attended(out, logarithms, expected, dtype, exact_logarithms=3e-4, of_terms=0.0):
    """Each element within what rounding leaves: of out to its type, of the softmax's weights to
    the same type, and 3e-4 for sums in FP32. Logarithms may be None. A score may be away by
    of_terms of its terms, and weights by twice that: by those of the score and of their sum."""
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]  # half a step, relative
    of_scores = of_terms * expected.terms
    of_weights = unit + 3e-4 + 2 * np.swapaxes(of_scores, -1, -2)[..., None]
    limit = unit * abs(expected.out) + of_weights * expected.magnitudes + 2.0**-24
    error = abs(np.asarray(out, np.float64) - expected.out)
    worst = np.unravel_index(np.argmax(error - limit), error.shape) if error.size else None
    assert np.all(error <= limit), f"at {worst}: {out[worst]}, not {expected.out[worst]}"
    if logarithms is None:
        return
    nothing = np.isneginf(expected.logarithms)
    assert np.array_equal(np.isneginf(logarithms), nothing)
    gap = abs(logarithms[~nothing] - expected.logarithms[~nothing])
    limit = exact_logarithms * (1 + abs(expected.logarithms)) + of_scores
    assert np.all(gap <= limit[~nothing])


def codes(rng, shape, dtype):
    return (
        (4 * rng.normal(size=shape)).astype(np.float32).astype(reference.DTYPES.get(dtype, dtype))
    )


def scales(rng, shape):
    """Scales that make numbers near 1 of codes(), and differ from neighbour to neighbour."""
    return np.exp2(rng.uniform(-4, -1, shape)).astype(np.float32)


def halves(rng, shape, dtype):
    return rng.normal(size=shape).astype(np.float32).astype(reference.DTYPES[dtype])


def with_scales(rng, problem, k_shape, v_shape):
    return problem | {"k_scale": scales(rng, k_shape), "v_scale": scales(rng, v_shape)}


def with_values(rng, problem, size):
    """Values of another size than keys."""
    shape, dtype = problem["v"].shape, problem["v"].dtype
    v = codes(rng, (*shape[:-1], size), dtype)
    v[np.isnan(problem["v"].astype(np.float32)).any(-1)] = np.nan
    return problem | {"v": v}


def with_latent(problem, size):
    """Values that are the first numbers of the keys, in the same memory."""
    return problem | {"v": problem["k"][..., :size]}


def dense(rng, batch, queries, keys, heads=4, kv_heads=2, size=64, q="float16", kv="e4m3 e4m3"):
    k, v = kv.split()
    shape = batch, keys, kv_heads, size
    return {
        "q": halves(rng, (batch, queries, heads, size), q),
        "k": codes(rng, shape, k),
        "v": codes(rng, shape, v),
    }


def packed(rng, queries, keys, heads=4, kv_heads=2, size=64, q="float16", kv="e4m3 e4m3"):
    """Sequences one behind another, of so many queries and keys."""
    problem = dense(rng, 1, sum(queries), sum(keys), heads, kv_heads, size, q, kv)
    problem = {name: array[0] for name, array in problem.items()}
    return problem | {"query_offsets": offsets_of(queries), "key_offsets": offsets_of(keys)}


def paged(
    rng, queries, keys, page_size=16, heads=4, kv_heads=2, size=64, q="float16", kv="e4m3 e4m3"
):
    """Sequences of `keys` keys in pages anywhere, `queries` queries each. What no sequence counts
    is NaN, pages behind its last are no pages."""
    columns = -(-max(keys) // page_size) + 1
    pages = len(keys) * columns + 3
    problem = dense(rng, len(keys), queries, 1, heads, kv_heads, size, q, kv)
    order, table = rng.permutation(pages), np.zeros((len(keys), columns), np.int32)
    for name, dtype in zip(("k", "v"), kv.split(), strict=True):
        problem[name] = codes(rng, (pages, page_size, kv_heads, size), dtype)
        problem[name].view(np.uint8)[order[len(keys) * columns :]] = reference.NAN_CODE
    for sequence, count in enumerate(keys):
        table[sequence] = order[sequence * columns : (sequence + 1) * columns]
        used = -(-count // page_size)
        for name in ("k", "v"):
            of_sequence = problem[name].view(np.uint8)
            of_sequence[table[sequence, used:]] = reference.NAN_CODE
            if count % page_size:
                of_sequence[table[sequence, used - 1], count % page_size :] = reference.NAN_CODE
    return problem | {"key_counts": np.int32(keys), "page_table": table}


def to_torch(array, device="cpu"):
    """The same bits as a tensor."""
    import torch

    carriers = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
    carrier = carriers.get(array.dtype.name)
    plain = array if carrier is None else array.view(carrier)
    tensor = torch.from_numpy(np.array(plain)).to(device)
    return tensor if carrier is None else tensor.view(getattr(torch, array.dtype.name))
