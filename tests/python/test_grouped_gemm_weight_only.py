"""Products of groups of 16-bit rows with FP8 weights: each group's part has the bits of
gemm_weight_only(), wherever its rows lie."""

import itertools

import numpy as np
import octofold
from hypothesis import given, settings
from hypothesis import strategies as st
from octofold import (
    Masked,
    Rows,
    ScaledTensor,
    gemm_weight_only,
    grouped_gemm_weight_only,
)
from octofold.ops import Gathered, gemm_weight_only_gradient, grouped_gemm_weight_only_gradient

from tests.python import reference
from tests.python.reference import offsets_of

HALVES = {dtype: reference.DTYPES[dtype] for dtype in ("float16", "bfloat16")}
UNTOUCHED = 7

sizes_of_groups = st.lists(st.sampled_from([0, 0, 1, 3, 40, 130]), min_size=1, max_size=5)


def random(seed, *shape, dtype="float16"):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values.astype(reference.DTYPES[dtype])


def weights(groups, n, k, granularity, dtype="e4m3"):
    """The matrices of the groups, and the stack of them."""
    each = [
        octofold.quantize(random(100 + g, n, k, dtype="float32"), f"{dtype} {granularity}")
        for g in range(groups)
    ]
    scales = [w.scale.reshape(1) if granularity == "tensor" else w.scale[None] for w in each]
    data = np.stack([w.data for w in each])
    return each, ScaledTensor(data, np.concatenate(scales), granularity)


def product_of(x, w, bias, dtype):
    """The product of one group, forward or (with its gradient's width) backward."""
    if x.shape[1] == w.shape[1]:
        return gemm_weight_only(x, w, bias=bias, out_dtype=dtype)
    return gemm_weight_only_gradient(x, w, out_dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(
    sizes=sizes_of_groups,
    sides=st.sampled_from([(1, 16), (40, 128), (136, 300)]),
    granularity=st.sampled_from(reference.GRANULARITIES),
    dtype=st.sampled_from(sorted(HALVES)),
    w_dtype=st.sampled_from(["e4m3", "e5m2"]),
    spare=st.integers(0, 3),
    options=st.sampled_from(["", "bias", "float32", "gradient"]),
)
def test_rows_have_the_bits_of_separate_products(
    sizes, sides, granularity, dtype, w_dtype, spare, options
):
    (n, k), offsets, rows = sides, offsets_of(sizes), sum(sizes) + spare
    each, w = weights(len(sizes), n, k, granularity, w_dtype)
    backward = options == "gradient"
    x = random(1, rows, n if backward else k, dtype=dtype)
    out_dtype = "float32" if options == "float32" else dtype
    out = np.full((rows, k if backward else n), UNTOUCHED, reference.DTYPES[out_dtype])
    bias = random(2, len(sizes), n, dtype="float32") if options == "bias" else None
    if backward:
        assert grouped_gemm_weight_only_gradient(x, w, Rows(offsets), out=out) is out
    else:
        assert grouped_gemm_weight_only(x, w, Rows(offsets), bias=bias, out=out) is out
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin < end:
            own = None if bias is None else bias[g]
            expected = product_of(x[begin:end], each[g], own, out_dtype)
            assert out[begin:end].tobytes() == expected.tobytes()
    assert (out[offsets[-1] :] == UNTOUCHED).all()


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 40),
    slots=st.integers(1, 4),
    experts=st.integers(1, 6),
    lost=st.booleans(),
    factors=st.booleans(),
    backward=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gathered_rows_are_those_that_are_copied(
    tokens, slots, experts, lost, factors, backward, seed
):
    rng, (n, k) = np.random.default_rng(seed), (40, 130)
    ids = rng.integers(-1 if lost else 0, experts, (tokens, slots)).astype(np.int32)
    order = octofold.ops.sort_by_expert(ids, experts)
    sources = order.sources.copy()
    if lost:  # in the midst of groups
        sources[rng.random(sources.size) < 0.2] = -1
    weights_of_slots = random(3, tokens, slots, dtype="float32") if factors else None
    _, w = weights(experts, n, k, "128x128")
    x = random(seed, tokens, n if backward else k)
    product = grouped_gemm_weight_only_gradient if backward else grouped_gemm_weight_only
    gathered = Gathered(x, sources, slots=slots, factors=weights_of_slots)
    out = np.full((sources.size, k if backward else n), UNTOUCHED, np.float32)
    product(gathered, w, Rows(order.offsets), out=out)
    copied = np.full_like(out, UNTOUCHED)
    product(x[np.maximum(sources, 0) // slots], w, Rows(order.offsets), out=copied)
    if factors:
        copied *= weights_of_slots.reshape(-1)[np.maximum(sources, 0)][:, None]
    exists = (sources >= 0) & (np.arange(sources.size) < order.offsets[-1])
    assert (out[~exists] == UNTOUCHED).all()
    np.testing.assert_allclose(out[exists], copied[exists], rtol=1e-5, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    granularity=st.sampled_from(reference.GRANULARITIES),
    backward=st.booleans(),
)
def test_masked_groups_write_their_first_rows_alone(counts, granularity, backward):
    groups, n, k = len(counts), 72, 200
    each, w = weights(groups, n, k, granularity)
    x = random(3, groups, 20, n if backward else k, dtype="bfloat16")
    out = np.full((groups, 20, k if backward else n), UNTOUCHED, np.float32)
    product = grouped_gemm_weight_only_gradient if backward else grouped_gemm_weight_only
    product(x, w, Masked(np.array(counts, np.int32), 4), out=out)
    for g, count in enumerate(counts):
        if count > 0:
            expected = product_of(x[g, :count], each[g], None, "float32")
            assert out[g, :count].tobytes() == expected.tobytes()
        assert (out[g, count:] == UNTOUCHED).all()


def test_shapes_and_scales_of_stacks():
    groups, n, k = 3, 256, 200
    stack = octofold.quantize(random(5, groups, n, k, dtype="float32"), "128x128")
    assert stack.scale.shape == (6, 2)
    x, offsets = random(6, 10, k), offsets_of([4, 0, 6])
    y = grouped_gemm_weight_only(x, stack, Rows(offsets))
    assert y.shape == (10, n)
    assert y.dtype == x.dtype
    by_group = ScaledTensor(stack.data, stack.scale.reshape(3, 2, 2), "128x128")
    np.testing.assert_array_equal(y, grouped_gemm_weight_only(x, by_group, Rows(offsets)))
    masked = grouped_gemm_weight_only(
        x[:9].reshape(3, 3, k), stack, Masked(np.array([3, 0, 2], np.int32))
    )
    assert masked.shape == (3, 3, n)
    np.testing.assert_array_equal(masked[0], y[:3])
    one = ScaledTensor(stack.data, np.full(1, 0.5, np.float32), "tensor")
    each = ScaledTensor(stack.data, np.full(3, 0.5, np.float32), "tensor")
    np.testing.assert_array_equal(
        grouped_gemm_weight_only(x, one, Rows(offsets)),
        grouped_gemm_weight_only(x, each, Rows(offsets)),
    )
    sources = np.arange(10, dtype=np.int32)
    gathered = grouped_gemm_weight_only(Gathered(x, sources), stack, Rows(offsets))
    np.testing.assert_array_equal(gathered, y)
    stacked_tokens = Gathered(x.reshape(2, 5, k), sources)
    np.testing.assert_array_equal(grouped_gemm_weight_only(stacked_tokens, stack, Rows(offsets)), y)
