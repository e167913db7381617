"""Attention against FP64 on each device."""

import numpy as np
import octofold
import pytest
from octofold._core.library import library
from octofold._ops.attention import _workspace_size

from tests.python import attention_cases as cases
from tests.python import reference
from tests.python.attention_cases import dense, packed, paged, with_scales
from tests.python.devices import attention, cpu_only, needs_hopper, on_gpu, on_gpus
from tests.python.reference import offsets_of

pytestmark = pytest.mark.usefixtures("each_device")

HALVES = ("float16", "bfloat16")
FAR = 2**63 - 1
KINDS = ("e4m3 e4m3", "e5m2 e4m3", "e4m3 e5m2", "e5m2 e5m2")


def sizes():
    """Batch, queries and keys: few queries and many, for which a GPU has kernels of their own."""
    return ((2, 3, 700), (2, 150, 290)) if on_gpu() else ((2, 1, 150), (2, 33, 70))


def lengths():
    """Queries and keys of sequences one behind another."""
    if not on_gpu():
        return (([3, 0, 17, 1, 5], [30, 4, 17, 200, 0]),)
    return (
        ([3, 0, 170, 1, 65], [300, 4, 170, 700, 0]),
        ([1] * 9, [0, 1, 31, 32, 33, 500, 127, 128, 129]),
        ([2, 1], [100, 1000]),
    )


def assert_attention(problem, *, of_terms=0.0, **options):
    """Asserts attention as FP64 has it, in new memory and in rows of memory given."""
    expected = cases.attend(**problem, **options)
    dtype = problem["q"].dtype.name
    out, logarithms = attention(**problem, **options, return_log_sum_exp=True)
    assert out.dtype == problem["q"].dtype
    assert logarithms.dtype == np.float32
    assert out.shape == expected.out.shape
    assert logarithms.shape == expected.logarithms.shape
    cases.assert_attended(out, logarithms, expected, dtype, of_terms=of_terms)
    memory = np.full((*out.shape[:-1], out.shape[-1] + 16), np.nan, out.dtype)
    given = memory[..., 8:-8]
    assert attention(**problem, **options, out=given) is given
    assert np.array_equal(given.copy().view(np.uint16), out.view(np.uint16))
    for beside in (memory[..., :8], memory[..., -8:]):
        assert np.isnan(beside.astype(np.float32)).all()
    return out


@pytest.mark.parametrize("size", [8, 32, 64, 72, 128, 256, 512, *on_gpus(24, 96, 136, 200, 264)])
@pytest.mark.parametrize("q", HALVES)
def test_of_head_sizes(size, q, rng):
    for each in sizes():
        assert_attention(with_scales(rng, dense(rng, *each, size=size, q=q), 1, 1), causal=True)


@pytest.mark.parametrize(
    ("size", "value_size"),
    [
        *((192, 128), (24, 136), (576, 512)),
        *on_gpus((64, 128), (256, 64), (64, 256), (72, 264), (512, 256)),
    ],
)
@pytest.mark.parametrize("q", HALVES)
def test_of_values_of_another_size(size, value_size, q, rng):
    few, many = sizes()
    for problem in (
        dense(rng, *few, size=size, q=q),
        dense(rng, *many, 2, 1, size=size, q=q),
        packed(rng, [3, 0, many[1]], [300, 4, 170], 2, 1, size=size, q=q),
        paged(rng, 1, [300, 33], size=size, q=q),
    ):
        problem = cases.with_values(rng, problem, value_size)
        out = assert_attention(with_scales(rng, problem, 1, 1), causal=True)
        assert out.shape == (*problem["q"].shape[:-1], value_size)
    pages = paged(rng, many[1], [400, 75], 32, size=size, q=q)
    problem = cases.with_values(rng, pages, value_size)
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, pages), window=(100, 3))


# A query of 128 heads is two tiles of Hopper's products. Other kernels compute latents of up to 256
# numbers.
@pytest.mark.parametrize(
    ("size", "value_size", "heads"),
    [
        (72, 64, 8),
        *on_gpus((320, 256, 64), (256, 192, 64), (512, 512, 40), (576, 512, 16), (576, 512, 128)),
    ],
)
@pytest.mark.parametrize("q", HALVES)
def test_of_latents(size, value_size, heads, q, rng):
    """Values are numbers of the keys, in their memory."""
    latent = {"heads": heads, "kv_heads": 1, "size": size, "q": q}
    problems = [
        (dense(rng, 2, 1, 300, **latent), (2, 3, 1)),
        (dense(rng, 1, 3, 90, **latent), (1, 1, 1)),
        (packed(rng, [3, 0, 1], [3, 40, 270], **latent), (313 // 128 + 3, 1)),
    ]
    pages = paged(rng, 1, [300, 1, 0, 257], 32, **latent)
    problems.append((pages, (len(pages["k"]), 1)))
    for problem, blocks in problems:
        problem = cases.with_latent(problem, value_size)
        scaled = with_scales(rng, problem, 1, 1)
        out = assert_attention(scaled, causal=True)
        apart = scaled | {"v": np.ascontiguousarray(scaled["v"])}
        if not on_gpu():  # whose kernels for latents read them once
            assert np.array_equal(attention(**apart, causal=True), out)
        assert_attention(with_scales(rng, problem, blocks, blocks), window=(100, 3))
    problem = cases.with_latent(dense(rng, 1, 1, 1500, **latent, kv="e5m2 e5m2"), value_size)
    assert_attention(with_scales(rng, problem, 1, 1))


@pytest.mark.parametrize("kv", KINDS)
@pytest.mark.parametrize("q", HALVES)
def test_of_every_pair_of_types(q, kv, rng):
    for each in sizes():
        for size in (64, 128):
            problem = dense(rng, *each, size=size, q=q, kv=kv)
            assert_attention(with_scales(rng, problem, 2, 2))


@pytest.mark.parametrize("kv", ["e4m3 e4m3", "e5m2 e5m2"])
@pytest.mark.parametrize("q", HALVES)
def test_decodes_every_code(q, kv):
    """One key: its weight is 1, so the result is its value."""
    dtype = reference.DTYPES[kv.split()[0]]
    v = np.arange(256, dtype=np.uint8).reshape(1, 1, 2, 128).view(dtype)
    for queries in (1, 64):
        queries = np.zeros((1, queries, 2, 128), reference.DTYPES[q])
        actual = attention(queries, np.zeros_like(v), v)
        expected = np.broadcast_to(v.astype(np.float32), actual.shape)
        np.testing.assert_array_equal(actual.astype(np.float32), expected)


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (4, 4), (5, 5), (6, 2), (12, 4), (16, 1), (40, 1)]
)
def test_of_grouped_heads(heads, kv_heads, rng):
    for batch, queries, keys in ((3, 1, 260), (1, 2, 260), (1, 70, 130)):
        problem = dense(rng, batch, queries, keys, heads, kv_heads)
        assert_attention(with_scales(rng, problem, 1, kv_heads), causal=True)


# Tensor cores sum 128 products of codes with about 14 bits (docs/numerics.md). A GPU has FP8 scores
# for many queries and heads of up to 128 numbers.
@needs_hopper
@pytest.mark.parametrize(
    "size", [8, 24, 64, 72, 96, 128, *(pytest.param(size, marks=cpu_only) for size in (136, 512))]
)
@pytest.mark.parametrize("q", HALVES)
@pytest.mark.parametrize("kv", ["e4m3 e4m3", "e5m2 e4m3", "e5m2 e5m2"])
def test_of_fp8_scores(size, q, kv, rng):
    """Products of codes are what FP64 makes of them, and not far from exact ones."""
    fp8 = {"compute": "fp8", "of_terms": 5e-4 * on_gpu()}
    batch, queries, keys = sizes()[1]
    plain = dense(rng, batch, queries, keys, size=size, q=q, kv=kv)
    blocks = batch, -(-keys // 128), 2
    for problem, options in (
        (with_scales(rng, plain, blocks, 1), {"causal": True}),
        (with_scales(rng, plain, blocks, blocks), {"window": (100, 3)}),
    ):
        out = assert_attention(problem, **options, **fp8)
        exact = attention(**problem, compute="exact", **options)
        assert np.array_equal(exact, attention(**problem, **options))
        out, exact = (x.astype(np.float64) for x in (out, exact))
        assert 0 < np.linalg.norm(out - exact) < 0.06 * np.linalg.norm(exact)
    queries, keys = ([70, 0, 170, 65], [70, 4, 300, 0]) if on_gpu() else ([3, 0, 7], [30, 4, 9])
    problem = packed(rng, queries, keys, 2, 1, size=size, q=q, kv=kv)
    assert_attention(with_scales(rng, problem, 1, 1), causal=True, **fp8)
    queries, keys = (70, [400, 75]) if on_gpu() else (4, [40, 75])
    problem = paged(rng, queries, keys, 32, size=size, q=q, kv=kv)
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, 1), causal=True, **fp8)
    assert_attention(with_scales(rng, problem, 2, pages), softmax_scale=-0.05, **fp8)


@needs_hopper
@pytest.mark.parametrize("both", [(128, 64), (64, 128), (96, 256)])
@pytest.mark.parametrize("q", HALVES)
def test_of_fp8_scores_and_values_of_another_size(both, q, rng):
    fp8 = {"compute": "fp8", "of_terms": 5e-4 * on_gpu()}
    problem = cases.with_values(rng, dense(rng, *sizes()[1], size=both[0], q=q), both[1])
    assert_attention(with_scales(rng, problem, 1, 1), causal=True, **fp8)
    problem = cases.with_values(rng, paged(rng, 70, [400, 75], 32, size=both[0], q=q), both[1])
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, pages), softmax_scale=-0.05, **fp8)


@needs_hopper
@pytest.mark.parametrize("q", HALVES)
def test_fp8_scores_of_zeros_and_nan(q, rng):
    """Zeros have scores of 0, NaN and infinity make NaN of their own row."""
    problem = with_scales(rng, dense(rng, 1, 80, 200, 1, 1, 64, q=q), 1, 1)
    problem["q"][0, 1] = 0
    if not on_gpu():
        problem["q"].view(np.uint16)[0, 3] = 1  # the smallest subnormal number
    problem["q"][0, 2, 0, 5] = np.nan
    problem["q"][0, 70, 0, 63] = -np.inf
    out, logarithms = attention(**problem, compute="fp8", return_log_sum_exp=True)
    expected = np.isin(np.arange(80), [2, 70])
    nan = np.isnan(out[0, :, 0])
    assert np.array_equal(nan.all(-1), expected)
    assert np.array_equal(nan.any(-1), expected)
    assert np.array_equal(np.isnan(logarithms[0, 0]), expected)
    np.testing.assert_allclose(logarithms[0, 0, 1], np.log(200), rtol=1e-5)


@pytest.mark.parametrize(
    "window",
    [
        *(None, (0, 0), (10, None), (None, 3), (-1, 0), (7, 5), (70, 50), (100, 0), (500, 1)),
        *((0, FAR), (FAR, FAR)),
    ],
)
def test_of_windows(window, rng):
    small, large = ((20, 20), (5, 60), (30, 9)), ((200, 200), (4, 600), (150, 60))
    for queries, keys in large if on_gpu() else small:
        problem = with_scales(rng, dense(rng, 2, queries, keys), 1, 1)
        assert_attention(problem, window=window)
        if window is None or window[1] in (0, None):
            causal = assert_attention(problem, window=window, causal=True)
            left = None if window is None else window[0]
            assert np.array_equal(causal, attention(**problem, window=(left, 0)))


@pytest.mark.parametrize("q", HALVES)
@pytest.mark.parametrize("causal", [False, True])
def test_of_sequences_one_behind_another(causal, q, rng):
    for queries, keys in lengths():
        problem = packed(rng, queries, keys, q=q)
        assert_attention(with_scales(rng, problem, 1, 1), causal=causal)
        blocks = sum(keys) // 128 + len(keys), 2
        assert_attention(with_scales(rng, problem, blocks, 2), causal=causal, window=(50, None))
        assert_attention(with_scales(rng, problem, blocks, blocks), window=(50, 3))


def test_of_packed_queries_over_a_rectangular_cache(rng):
    problem = dense(rng, 3, 1, 50)
    problem["q"] = cases.halves(rng, (9, 4, 64), "float16")
    problem |= {"query_offsets": offsets_of([4, 0, 5]), "key_counts": np.int32([50, 7, 0])}
    assert_attention(with_scales(rng, problem, 1, 1), causal=True)


def test_queries_behind_the_last_offset_stay_as_they_are(rng):
    problem = packed(rng, [3, 2], [30, 9])
    problem["q"] = cases.halves(rng, (8, 4, 64), "float16")
    out = np.full_like(problem["q"], np.nan)
    attention(**problem, softmax_scale=0.01, out=out)
    assert np.isnan(out).all((1, 2)).tolist() == [False] * 5 + [True] * 3


def test_of_counts_of_keys(rng):
    problem = dense(rng, 4, 3, 300)
    counts = np.int32([300, 0, 129, 1])
    for sequence, count in enumerate(counts):
        for name in ("k", "v"):
            problem[name].view(np.uint8)[sequence, count:] = reference.NAN_CODE
    problem["key_counts"] = counts
    for causal in (False, True):
        assert_attention(with_scales(rng, problem, (4, 3, 2), (4, 3, 2)), causal=causal)


@pytest.mark.parametrize("page_size", [16, 64, 256, *on_gpus(32, 128)])
@pytest.mark.parametrize("q", HALVES)
def test_of_pages(page_size, q, rng):
    small = ((1, [100, 1, 0, 257]), (3, [40]), (40, [64, 200]))
    large = ((1, [900, 1, 0, 257, 16]), (3, [40]), (70, [400, 75]))
    for queries, keys in large if on_gpu() else small:
        problem = paged(rng, queries, keys, page_size, q=q)
        of_pages = len(problem["k"]), 2
        assert_attention(with_scales(rng, problem, 1, 2), causal=True)
        assert_attention(with_scales(rng, problem, of_pages, of_pages), causal=True)
        assert_attention(with_scales(rng, problem, 2, of_pages), window=(30, -1))


def test_of_packed_queries_over_pages(rng):
    problem = paged(rng, 1, [100, 30, 5])
    problem["q"] = cases.halves(rng, (20, 4, 64), "bfloat16")
    problem["query_offsets"] = offsets_of([15, 0, 5])
    assert_attention(problem, causal=True)


def test_of_scales_of_every_shape(rng):
    problem = dense(rng, 2, 6, 300, 4, 2, 32)
    for k_shape in (None, (), 1, (1, 1), 2, (2, 3, 2)):
        for v_shape in (None, 1, 2, (2, 3, 2)):
            k_scale, v_scale = (
                None if shape is None else cases.scales(rng, shape) for shape in (k_shape, v_shape)
            )
            # Codes alone make scores that leave the softmax one key.
            scale = 0.01 if k_scale is None else None
            scaled = problem | {"k_scale": k_scale, "v_scale": v_scale}
            assert_attention({**scaled, "k_scale": np.asarray(k_scale)} if k_scale is not None
                             else scaled, softmax_scale=scale)  # fmt: skip


@pytest.mark.parametrize("exponent", [-12, 12])
@pytest.mark.parametrize("q", HALVES)
def test_of_scales_far_from_one(q, exponent, rng):
    """Weights times scales fit into FP16 however large scales are; results may be beyond it."""
    for batch, queries, keys in sizes():
        blocks = batch, -(-keys // 128), 2
        problem = with_scales(rng, dense(rng, batch, queries, keys, q=q), blocks, blocks)
        problem["v_scale"] *= np.float32(2.0**exponent)
        assert_attention(problem)


def test_of_few_sequences_with_many_keys(rng):
    """Keys that several blocks share."""
    keys = 20_000 if on_gpu() else 2000
    for heads, kv_heads, batch in ((1, 1, 1), (8, 1, 1), (8, 2, 3)):
        problem = dense(rng, batch, 1, keys, heads, kv_heads, 128)
        assert_attention(with_scales(rng, problem, 1, 1))
        assert_attention(with_scales(rng, problem, 1, 1), window=(300, 0))


@needs_hopper
def test_fp8_scores_of_few_rows_with_many_keys(rng):
    keys = 20_000 if on_gpu() else 2000
    problem = with_scales(rng, dense(rng, 1, 40, keys, 1, 1, 128), 1, 1)
    assert_attention(problem, compute="fp8", of_terms=5e-4 * on_gpu())


def test_of_large_scores(rng):
    """The softmax has one key, or a few."""
    for each in sizes():
        problem = dense(rng, *each)
        expected = cases.attend(**problem, softmax_scale=20)
        out = attention(**problem, softmax_scale=20).astype(np.float64)
        # Scores near 10^4, whose last bits decide where two are close.
        assert np.mean(abs(out - expected.out) > 0.05 * (1 + expected.magnitudes)) < 0.02
        assert np.isfinite(out).all()


def test_of_memory_at_any_address(rng):
    """One code, or one number, behind an aligned address."""
    for each in sizes():
        problem = dense(rng, *each)
        expected = attention(**problem, softmax_scale=0.02)
        for name, array in problem.items():
            moved = np.zeros(array.size + 1, array.dtype)[1:].reshape(array.shape)
            moved[...] = array
            out = attention(**(problem | {name: moved}), softmax_scale=0.02)
            assert np.array_equal(out, expected)


def test_of_scales_of_any_strides(rng):
    problem = with_scales(rng, dense(rng, 2, 6, 300), (2, 3, 2), (2, 3, 2))
    expected = attention(**problem)
    for name in ("k_scale", "v_scale"):
        problem[name] = np.ascontiguousarray(problem[name].transpose(2, 0, 1)).transpose(1, 2, 0)
    assert np.array_equal(attention(**problem), expected)


def test_scale_of_scores(rng):
    problem = with_scales(rng, dense(rng, 1, 4, 40), 1, 1)
    for scale in (0.02, -0.1, np.float32(0.3), 1):
        assert_attention(problem, softmax_scale=scale)


def test_of_views(rng):
    """Heads before queries in memory, as projections leave them; every second page of a cache."""

    def swapped(array):
        return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)

    problem = dense(rng, 2, 7, 40)
    expected = attention(**problem, softmax_scale=0.02)
    views = {name: swapped(array) for name, array in problem.items()}
    assert np.array_equal(attention(**views, softmax_scale=0.02), expected)
    out = swapped(np.zeros_like(expected))
    assert attention(**views, softmax_scale=0.02, out=out) is out
    assert np.array_equal(out, expected)
    both = np.stack([problem["k"], problem["v"]], axis=2)
    parts = {"q": problem["q"], "k": both[:, :, 0], "v": both[:, :, 1]}
    assert np.array_equal(attention(**parts, softmax_scale=0.02), expected)
    shared = parts | {"k": parts["k"][:1], "q": parts["q"][:1], "v": np.broadcast_to(
        parts["v"][:1], (1, 40, 2, 64))}  # fmt: skip
    assert np.array_equal(attention(**shared, softmax_scale=0.02), expected[:1])


@cpu_only
def test_of_nothing(rng):
    for batch, queries, keys in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        problem = dense(rng, batch, queries, keys)
        out, logarithms = attention(**problem, return_log_sum_exp=True)
        assert out.shape == (batch, queries, 4, 64)
        assert not out.any()
        assert logarithms.shape == (batch, 4, queries)
        assert np.isneginf(logarithms).all()


@pytest.mark.parametrize("count", [10, 150])  # a GPU has kernels for either
def test_nan_reaches_who_sees_it(count, rng):
    problem = dense(rng, 2, count, count, 2, 2)
    problem["k"].view(np.uint8)[0, 6, 1, 3] = reference.NAN_CODE
    out, logarithms = attention(**problem, causal=True, return_log_sum_exp=True)
    expected = np.zeros((2, count, 2), bool)
    expected[0, 6:, 1] = True
    assert np.array_equal(np.isnan(out).all(-1), expected)
    assert np.array_equal(np.isnan(out).any(-1), expected)
    assert np.array_equal(np.isnan(logarithms).swapaxes(1, 2), expected)
    problem = dense(rng, 2, count, count, 2, 2)
    problem["v"].view(np.uint8)[1, count - 1, 0, 3] = reference.NAN_CODE
    nans = np.isnan(attention(**problem, softmax_scale=0.01))
    assert np.argwhere(nans).tolist() == [[1, query, 0, 3] for query in range(count)]


@cpu_only
def test_has_no_gradient(rng):
    torch = pytest.importorskip("torch")
    problem = {name: cases.to_torch(array) for name, array in dense(rng, 1, 2, 5).items()}
    q = problem["q"].requires_grad_()
    with pytest.raises(octofold.UnsupportedError, match="argument 'out': expected nothing to diff"):
        attention(**problem, out=torch.empty_like(q))


@cpu_only
def test_workspace_is_that_of_the_library():
    for rows in (0, 1, 2, 255, 256, 257, 8191, 8192, 8193, 16384, 16385):
        size = _workspace_size((1, rows, 1, 72))
        assert size == library.attention_workspace_size(rows, 1, 72, None)
        assert _workspace_size((rows, 1, 72)) == size
        for keys in (0, 1, 1024, 1025, 3072, 3073, 70_000, 10**6):
            size = _workspace_size((rows, 1, 72), keys)
            assert size == library.attention_workspace_size(rows, 1, 72, keys)
