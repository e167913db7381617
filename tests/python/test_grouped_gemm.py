"""Products of groups: each group's part has the bits of a product of its own."""

import itertools

import numpy as np
import octofold
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from octofold import Depth, Masked, Rows, ScaledTensor

from tests.python import reference
from tests.python.reference import offsets_of

GRANULARITIES = reference.GRANULARITIES


def random_values(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stacked(groups):
    """Matrices of as many rows as one [G, N, K], each with its own scales."""
    granularity = groups[0].granularity
    scales = [g.scale.reshape(1) if granularity == "tensor" else g.scale[None] for g in groups]
    return ScaledTensor(np.stack([g.data for g in groups]), np.concatenate(scales), granularity)


def weights(groups, n, k, granularity):
    return [octofold.quantize(random_values(100 + g, n, k), granularity) for g in range(groups)]


def by_rows(tensor, begin, end):
    """Any rows, whatever shares a scale."""
    if tensor.granularity == "128x128":
        scale = np.repeat(tensor.scale, 128, axis=0)[begin:end]
        return ScaledTensor(tensor.data[begin:end], scale, "1x128")
    return tensor[begin:end]


sizes_of_groups = st.lists(
    st.one_of(st.just(0), st.integers(1, 40), st.integers(100, 300)), min_size=1, max_size=5
)


@settings(max_examples=30, deadline=None)
@given(
    sizes=sizes_of_groups,
    n=st.sampled_from([1, 40, 128, 200]),
    k=st.sampled_from([16, 128, 300]),
    a_granularity=st.sampled_from(GRANULARITIES),
    b_granularity=st.sampled_from(GRANULARITIES),
    spare=st.integers(0, 3),
    with_bias=st.booleans(),
)
def test_any_partition_of_rows_gives_the_bits_of_separate_products(
    sizes, n, k, a_granularity, b_granularity, spare, with_bias
):
    offsets, rows = offsets_of(sizes), sum(sizes) + spare
    a = octofold.quantize(random_values(1, rows, k), a_granularity)
    b = weights(len(sizes), n, k, b_granularity)
    bias = random_values(2, len(sizes), n) if with_bias else None
    out = np.full((rows, n), 7, bfloat16)
    octofold.grouped_gemm(a, stacked(b), Rows(offsets), bias=bias, out=out)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin == end:
            continue
        expected = octofold.gemm(
            by_rows(a, begin, end), b[g], bias=None if bias is None else bias[g]
        )
        assert out[begin:end].tobytes() == expected.tobytes()
    assert (out[offsets[-1] :] == 7).all()


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    granularity=st.sampled_from(GRANULARITIES),
    rows_next=st.booleans(),
)
def test_masked_groups_write_their_first_rows_alone(counts, granularity, rows_next):
    """rows_next: scales as DeepGEMM has them, each group's rows next to each other."""
    groups, rows, n, k = len(counts), 150, 72, 200
    a = octofold.quantize(random_values(3, groups, rows, k), granularity)
    if granularity == "1x128" and rows_next:
        scale = np.ascontiguousarray(a.scale.swapaxes(1, 2)).swapaxes(1, 2)
        a = ScaledTensor(a.data, scale, granularity)
    b = weights(groups, n, k, "128x128")
    out = np.full((groups, rows, n), 7, np.float32)
    octofold.grouped_gemm(a, stacked(b), Masked(np.array(counts, np.int32), 10), out=out)
    flat = ScaledTensor(a.data.reshape(-1, k), a.scale, granularity)
    if granularity == "1x128":
        flat = ScaledTensor(flat.data, a.scale.reshape(groups * rows, -1), granularity)
    if granularity == "channel":
        flat = ScaledTensor(flat.data, a.scale.reshape(-1), granularity)
    for g, count in enumerate(counts):
        if count > 0:
            first = g * rows
            expected = octofold.gemm(by_rows(flat, first, first + count), b[g], out_dtype="float32")
            assert out[g, :count].tobytes() == expected.tobytes()
        assert (out[g, count:] == 7).all()


def grouped_transpose(x, offsets, granularity):
    """The transposes of the groups' rows, each where Depth() has its columns."""
    rows, features = x.shape
    groups = len(offsets) - 1
    slots = rows // 128 + groups
    codes = np.zeros((features, 128 * slots), reference.DTYPES["e4m3"])
    whole = octofold.ops.cast(x, transposed=granularity).transposed
    shapes = {
        "tensor": (1,),
        "channel": (features,),
        "1x128": (features, slots),
        "128x128": ((features + 127) // 128, slots),
    }
    scale = np.full(shapes[granularity], np.nan, np.float32)
    if granularity in ("tensor", "channel"):
        scale = whole.scale
    for g in range(groups):
        begin, end = offsets[g], offsets[g + 1]
        slot = begin // 128 + g
        columns = slice(128 * slot, 128 * slot + end - begin)
        if granularity in ("tensor", "channel"):
            codes[:, columns] = whole.data[:, begin:end]
        elif begin < end:
            part = octofold.ops.cast(x[begin:end], transposed=granularity).transposed
            codes[:, columns] = part.data
            scale[:, slot : slot + part.scale.shape[1]] = part.scale
    return ScaledTensor(codes, scale, granularity)


@settings(max_examples=20, deadline=None)
@given(
    sizes=sizes_of_groups,
    a_granularity=st.sampled_from(GRANULARITIES),
    b_granularity=st.sampled_from(GRANULARITIES),
    accumulate=st.booleans(),
)
def test_groups_of_k_are_summed_apart(sizes, a_granularity, b_granularity, accumulate):
    offsets = offsets_of(sizes)
    gradient, x = random_values(4, sum(sizes), 40), random_values(5, sum(sizes), 72)
    if sum(sizes) == 0:
        return
    a = grouped_transpose(gradient, offsets, a_granularity)
    b = grouped_transpose(x, offsets, b_granularity)
    before = random_values(6, len(sizes), 40, 72)
    out = before.copy()
    octofold.grouped_gemm(a, b, Depth(offsets), c=out if accumulate else None, out=out)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        columns = slice(128 * (begin // 128 + g), 128 * (begin // 128 + g) + end - begin)
        slots = slice(begin // 128 + g, begin // 128 + g + (end - begin + 127) // 128)

        def of_group(tensor, columns=columns, slots=slots):
            varies = tensor.granularity in ("1x128", "128x128")
            scale = tensor.scale[:, slots] if varies else tensor.scale
            return ScaledTensor(tensor.data[:, columns], scale, tensor.granularity)

        expected = octofold.gemm(
            of_group(a), of_group(b), c=before[g] if accumulate else None, out_dtype="float32"
        )
        assert out[g].tobytes() == expected.tobytes()


def test_gated_groups_have_the_bits_of_separate_ones():
    offsets = offsets_of([3, 0, 140])
    a = octofold.quantize(random_values(7, 143, 256))
    b = weights(3, 384, 256, "128x128")
    result = octofold.ops.gated_gemm(a, stacked(b), Rows(offsets), activation="geglu")
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin < end:
            expected = octofold.ops.gated_gemm(a[begin:end], b[g], activation="geglu")
            assert result[begin:end].equals(expected)


def test_scales_of_a_cast_of_all_groups_are_taken():
    w = random_values(8, 3, 256, 130)
    offsets = offsets_of([5, 6, 7])
    a = octofold.quantize(random_values(9, 18, 130))
    for granularity in GRANULARITIES:
        b = octofold.quantize(w, granularity)
        result = octofold.grouped_gemm(a, b, Rows(offsets), out_dtype="float32")
        for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
            of_group = b if granularity == "tensor" else b[g : g + 1]
            flat = ScaledTensor(
                b.data[g],
                of_group.scale.reshape(
                    {"tensor": (1,), "channel": (256,)}.get(granularity, (-1, 2))
                ),
                granularity,
            )
            expected = octofold.gemm(a[begin:end], flat, out_dtype="float32")
            assert result[begin:end].tobytes() == expected.tobytes()


def test_tight_groups_of_k():
    offsets, x = offsets_of([128, 0, 256]), octofold.quantize(random_values(1, 40, 384))
    out = octofold.grouped_gemm(x, x, Depth(offsets, "tight"))
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        part = ScaledTensor(x.data[:, begin:end], x.scale[:, begin // 128 : end // 128], "1x128")
        assert out[g].tobytes() == octofold.gemm(part, part).tobytes()
