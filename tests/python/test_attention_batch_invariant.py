"""A row of an attention has the same bits in any batch, with batch_invariant."""

import numpy as np
import octofold
import pytest

from tests.python import attention_cases as cases

KEYS, HEADS, KV_HEADS, SIZE = 300, 4, 2, 40


@pytest.fixture
def sequence(rng):
    """Queries, keys and values of as many places."""
    shape = KEYS, KV_HEADS, SIZE
    q = cases.halves(rng, (KEYS, HEADS, SIZE), "float16")
    return q, cases.codes(rng, shape, "e4m3"), cases.codes(rng, shape, "e5m2")


def rows_of(sequence, count, end, others, at, rng, **options):
    """The last `count` queries of the first `end` keys, in a batch with others of so many queries
    and keys: bits of results and of logarithms."""
    lengths = [*others]
    lengths.insert(at, (count, end))
    queries, keys, values = [], [], []
    for i, (own_queries, own_keys) in enumerate(lengths):
        q, k, v = sequence
        if i != at:
            q, k, v = (rng.permutation(array) for array in sequence)
        queries.append(q[own_keys - own_queries : own_keys])
        keys.append(k[:own_keys])
        values.append(v[:own_keys])
    out, logarithms = octofold.attention(
        np.concatenate(queries),
        np.concatenate(keys),
        np.concatenate(values),
        query_offsets=cases.offsets_of([queries for queries, _ in lengths]),
        key_offsets=cases.offsets_of([keys for _, keys in lengths]),
        return_log_sum_exp=True,
        batch_invariant=True,
        **options,
    )
    first = sum(queries for queries, _ in lengths[:at])
    of_sequence = np.s_[first : first + count]
    return out[of_sequence].view(np.int16), logarithms[:, of_sequence].T.view(np.int32)


@pytest.mark.parametrize("compute", ["exact", "fp8"])
@pytest.mark.parametrize("window", [(None, 0), (150, 0), (133, 5)])
def test_rows_do_not_depend_on_the_batch(sequence, window, compute, rng):
    options = {"window": window, "compute": compute}
    causal = window[1] == 0
    whole = rows_of(sequence, KEYS, KEYS, [], 0, rng, **options)
    for count in (1, 2, 7, 33, 40, 64, 129, 299):
        # If a window goes beyond its place, a query has the same keys only at the end of them all.
        end = int(rng.integers(count, KEYS + 1)) if causal else KEYS
        others = [tuple(sorted(rng.integers(1, KEYS, 2))) for _ in range(rng.integers(4))]
        at = int(rng.integers(len(others) + 1))
        some = rows_of(sequence, count, end, others, at, rng, **options)
        for actual, expected in zip(some, whole, strict=True):
            np.testing.assert_array_equal(actual, expected[end - count : end])


def test_the_switch_sizes_the_workspace(sequence):
    """The switch does so as the argument does, also with `out`."""
    q, k, v = (np.concatenate([array] * 5)[None] for array in sequence)
    expected = octofold.attention(q[:, -2:], k, v, batch_invariant=True)
    out = np.empty_like(expected)
    octofold.set_batch_invariant(True)
    try:
        np.testing.assert_array_equal(octofold.attention(q[:, -2:], k, v), expected)
        octofold.attention(q[:, -2:], k, v, out=out)
    finally:
        octofold.set_batch_invariant(False)
    np.testing.assert_array_equal(out, expected)
