"""Attention of NumPy's arrays against FP64, and of torch's beside these and beside torch's own."""

import numpy as np
import octofold
import pytest
from octofold._core.library import library
from octofold._ops.attention import _workspace_size

from tests.python import attention_cases as cases
from tests.python import reference
from tests.python.attention_cases import dense, packed, paged, with_scales

HALVES = ("float16", "bfloat16")
SIZES = (8, 32, 64, 72, 128, 256, 512)
FAR = 2**63 - 1
KINDS = ("e4m3 e4m3", "e5m2 e4m3", "e4m3 e5m2", "e5m2 e5m2")


def assert_attention(problem, **options):
    """Asserts attention as FP64 has it, in new memory and in memory given."""
    expected = cases.attend(**problem, **options)
    dtype = problem["q"].dtype.name
    out, logarithms = octofold.attention(**problem, **options, return_log_sum_exp=True)
    assert out.dtype == problem["q"].dtype
    assert logarithms.dtype == np.float32
    assert out.shape == expected.out.shape
    assert logarithms.shape == expected.logarithms.shape
    cases.assert_attended(out, logarithms, expected, dtype)
    given = np.full_like(out, np.nan)
    assert octofold.attention(**problem, **options, out=given) is given
    assert np.array_equal(given.view(np.uint16), out.view(np.uint16))
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("q", HALVES)
def test_of_head_sizes(size, q, rng):
    for queries, keys in ((1, 150), (33, 70)):
        problem = dense(rng, 2, queries, keys, size=size, q=q)
        assert_attention(with_scales(rng, problem, 1, 1))


@pytest.mark.parametrize("sizes", [(192, 128), (24, 40), (576, 512)])
@pytest.mark.parametrize("layout", ["dense", "packed", "paged"])
def test_of_values_of_another_size(sizes, layout, rng):
    size, value_size = sizes
    problem = {
        "dense": lambda: dense(rng, 2, 3, 70, size=size),
        "packed": lambda: packed(rng, [3, 1], [30, 9], size=size),
        "paged": lambda: paged(rng, 2, [20, 9], size=size),
    }[layout]()
    problem = cases.with_values(rng, problem, value_size)
    out = assert_attention(with_scales(rng, problem, 1, 2), causal=True)
    assert out.shape == (*problem["q"].shape[:-1], value_size)


@pytest.mark.parametrize("layout", ["dense", "packed", "paged"])
def test_of_a_latent(layout, rng):
    """Values are numbers of the keys, in their memory."""
    heads = {"heads": 8, "kv_heads": 1, "size": 72}
    problem = {
        "dense": lambda: dense(rng, 2, 3, 150, **heads),
        "packed": lambda: packed(rng, [3, 1], [130, 9], **heads),
        "paged": lambda: paged(rng, 2, [20, 9], **heads),
    }[layout]()
    problem = cases.with_latent(problem, 64) | {"k_scale": cases.scales(rng, 1)}
    problem["v_scale"] = problem["k_scale"]
    out = assert_attention(problem, causal=True)
    apart = problem | {"v": np.ascontiguousarray(problem["v"])}
    assert np.array_equal(octofold.attention(**apart, causal=True), out)


@pytest.mark.parametrize("kv", KINDS)
@pytest.mark.parametrize("q", HALVES)
def test_of_every_pair_of_types(q, kv, rng):
    problem = dense(rng, 1, 5, 40, q=q, kv=kv)
    assert_attention(with_scales(rng, problem, 1, 1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (8, 1)])
def test_of_grouped_heads(heads, kv_heads, rng):
    problem = dense(rng, 3, 4, 50, heads, kv_heads, 32)
    assert_attention(with_scales(rng, problem, 1, 1))


@pytest.mark.parametrize("size", [8, 24, 128, 136, 512])
@pytest.mark.parametrize("q", HALVES)
@pytest.mark.parametrize("kv", ["e4m3 e4m3", "e5m2 e5m2"])
def test_of_fp8_scores(size, q, kv, rng):
    """Products of codes are what FP64 makes of them, and not far from exact ones."""
    problem = with_scales(rng, dense(rng, 2, 7, 150, size=size, q=q, kv=kv), (2, 2, 2), 1)
    out = assert_attention(problem, compute="fp8", causal=True)
    exact = octofold.attention(**problem, compute="exact", causal=True)
    assert np.array_equal(exact, octofold.attention(**problem, causal=True))
    out, exact = (x.astype(np.float64) for x in (out, exact))
    assert 0 < np.linalg.norm(out - exact) < 0.06 * np.linalg.norm(exact)
    for layout in (packed(rng, [3, 1], [30, 9], size=size), paged(rng, 2, [20, 9], size=size)):
        assert_attention(with_scales(rng, layout, 1, 1), compute="fp8")


@pytest.mark.parametrize(
    "window", [None, (0, 0), (10, None), (None, 3), (-1, 0), (7, 5), (500, 1), (0, FAR), (FAR, FAR)]
)
@pytest.mark.parametrize(("queries", "keys"), [(20, 20), (5, 60), (30, 9)])
def test_of_windows(window, queries, keys, rng):
    problem = with_scales(rng, dense(rng, 2, queries, keys, size=32), 1, 1)
    assert_attention(problem, window=window)
    if window is None or window[1] in (0, None):
        causal = assert_attention(problem, window=window, causal=True)
        left = None if window is None else window[0]
        as_window = octofold.attention(**problem, window=(left, 0))
        assert np.array_equal(causal, as_window)


@pytest.mark.parametrize("causal", [False, True])
def test_of_sequences_one_behind_another(causal, rng):
    problem = packed(rng, [3, 0, 17, 1, 5], [30, 4, 17, 200, 0], size=32)
    assert_attention(with_scales(rng, problem, 1, 1), causal=causal)
    blocks = 251 // 128 + 5, 2
    assert_attention(with_scales(rng, problem, blocks, 2), causal=causal, window=(20, None))


def test_of_packed_queries_over_a_rectangular_cache(rng):
    problem = dense(rng, 3, 1, 50)
    problem["q"] = cases.halves(rng, (9, 4, 64), "float16")
    problem |= {"query_offsets": cases.offsets_of([4, 0, 5]), "key_counts": np.int32([50, 7, 0])}
    assert_attention(with_scales(rng, problem, 1, 1), causal=True)


def test_queries_behind_the_last_offset_stay_as_they_are(rng):
    problem = packed(rng, [3, 2], [30, 9])
    problem["q"] = cases.halves(rng, (8, 4, 64), "float16")
    out = np.full_like(problem["q"], np.nan)
    octofold.attention(**problem, softmax_scale=0.01, out=out)
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


@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_of_pages(page_size, rng):
    for queries, keys in ((1, [100, 1, 0, 257]), (40, [64, 200])):
        problem = paged(rng, queries, keys, page_size)
        of_pages = len(problem["k"]), 2
        assert_attention(with_scales(rng, problem, 1, 2), causal=True)
        assert_attention(with_scales(rng, problem, of_pages, of_pages), causal=True)
        assert_attention(problem | {"v_scale": cases.scales(rng, of_pages)}, window=(30, -1))


def test_of_packed_queries_over_pages(rng):
    problem = paged(rng, 1, [100, 30, 5])
    problem["q"] = cases.halves(rng, (20, 4, 64), "bfloat16")
    problem["query_offsets"] = cases.offsets_of([15, 0, 5])
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


def test_of_scales_of_any_strides(rng):
    problem = with_scales(rng, dense(rng, 2, 6, 300), (2, 3, 2), (2, 3, 2))
    expected = octofold.attention(**problem)
    for name in ("k_scale", "v_scale"):
        problem[name] = np.ascontiguousarray(problem[name].transpose(2, 0, 1)).transpose(1, 2, 0)
    assert np.array_equal(octofold.attention(**problem), expected)


def test_scale_of_scores(rng):
    problem = with_scales(rng, dense(rng, 1, 4, 40), 1, 1)
    for scale in (0.02, -0.1, np.float32(0.3), 1):
        assert_attention(problem, softmax_scale=scale)


def test_of_views(rng):
    """Heads before queries in memory, as projections leave them; every second page of a cache."""

    def swapped(array):
        return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)

    problem = dense(rng, 2, 7, 40)
    expected = octofold.attention(**problem, softmax_scale=0.02)
    views = {name: swapped(array) for name, array in problem.items()}
    assert np.array_equal(octofold.attention(**views, softmax_scale=0.02), expected)
    out = swapped(np.zeros_like(expected))
    assert octofold.attention(**views, softmax_scale=0.02, out=out) is out
    assert np.array_equal(out, expected)
    both = np.stack([problem["k"], problem["v"]], axis=2)
    parts = {"q": problem["q"], "k": both[:, :, 0], "v": both[:, :, 1]}
    assert np.array_equal(octofold.attention(**parts, softmax_scale=0.02), expected)
    shared = parts | {"k": parts["k"][:1], "q": parts["q"][:1], "v": np.broadcast_to(
        parts["v"][:1], (1, 40, 2, 64))}  # fmt: skip
    assert np.array_equal(octofold.attention(**shared, softmax_scale=0.02), expected[:1])


def test_of_nothing(rng):
    for batch, queries, keys in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        problem = dense(rng, batch, queries, keys)
        out, logarithms = octofold.attention(**problem, return_log_sum_exp=True)
        assert out.shape == (batch, queries, 4, 64)
        assert not out.any()
        assert logarithms.shape == (batch, 4, queries)
        assert np.isneginf(logarithms).all()


def test_nan_reaches_who_sees_it(rng):
    problem = dense(rng, 1, 10, 10, 2, 2)
    problem["k"].view(np.uint8)[0, 6, 1, 3] = reference.NAN_CODE
    out, logarithms = octofold.attention(**problem, causal=True, return_log_sum_exp=True)
    expected = np.zeros((10, 2), bool)
    expected[6:, 1] = True
    assert np.array_equal(np.isnan(out[0]).all(-1), expected)
    assert np.array_equal(np.isnan(logarithms[0].T), expected)
    assert not np.isnan(out[0, :6]).any()
    problem = dense(rng, 1, 10, 10, 2, 2)
    problem["v"].view(np.uint8)[0, 9, 0, 3] = reference.NAN_CODE
    nans = np.isnan(octofold.attention(**problem, softmax_scale=0.01))
    assert np.argwhere(nans).tolist() == [[0, query, 0, 3] for query in range(10)]


def test_fp8_scores_of_zeros_and_nan(rng):
    problem = dense(rng, 1, 5, 10, 1, 1, q="bfloat16")
    problem["q"][0, 1] = 0
    problem["q"].view(np.uint16)[0, 2] = 1  # the smallest subnormal number
    assert_attention(problem, compute="fp8")
    problem["q"][0, 3:, 0, 5] = np.nan, -np.inf
    out, logarithms = octofold.attention(**problem, compute="fp8", return_log_sum_exp=True)
    assert np.isnan(out).all((0, 2, 3)).tolist() == [False, False, False, True, True]
    assert np.isnan(logarithms[0, 0]).tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(logarithms[0, 0, 1:3], np.log(10), rtol=1e-6)


def test_parts_of_keys_add_up_by_their_logarithms(rng):
    problem = with_scales(rng, dense(rng, 2, 3, 90), 1, 1)
    whole, logarithm = octofold.attention(**problem, return_log_sum_exp=True)
    parts = []
    for part in (np.s_[:, :30], np.s_[:, 30:]):
        keys = {name: np.ascontiguousarray(problem[name][part]) for name in ("k", "v")}
        parts.append(octofold.attention(**(problem | keys), return_log_sum_exp=True))
    total = np.logaddexp(parts[0][1], parts[1][1])
    np.testing.assert_allclose(total, logarithm, atol=1e-5)
    merged = sum(out * np.exp(part - total).transpose(0, 2, 1)[..., None] for out, part in parts)
    np.testing.assert_allclose(merged, whole, atol=4e-3)


@pytest.mark.parametrize("name", ["dense", "packed", "paged"])
def test_of_torch_is_that_of_numpy(name, rng):
    torch = pytest.importorskip("torch")
    problem, options = {
        "dense": (dense(rng, 2, 5, 200), {"softmax_scale": 0.02}),
        "packed": (
            packed(rng, [3, 9], [30, 9], q="bfloat16"),
            {"softmax_scale": 0.02, "causal": True},
        ),
        "paged": (
            paged(rng, 1, [40, 3], kv="e5m2 e4m3"),
            {"softmax_scale": 0.02, "window": (9, 0), "compute": "fp8"},
        ),
    }[name]
    expected = octofold.attention(**problem, **options, return_log_sum_exp=True)
    tensors = {name: cases.to_torch(array) for name, array in problem.items()}
    for actual, right in zip(
        octofold.attention(**tensors, **options, return_log_sum_exp=True), expected, strict=True
    ):
        assert torch.equal(actual, cases.to_torch(right))


def test_beside_scaled_dot_product_attention(rng):
    torch = pytest.importorskip("torch")
    problem = with_scales(rng, dense(rng, 2, 60, 60, 4, 2), 1, 1)
    q, k, v = (cases.to_torch(problem[name]).float().transpose(1, 2) for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k * problem["k_scale"][0], v * problem["v_scale"][0], is_causal=True, enable_gqa=True
    )
    tensors = {name: cases.to_torch(array) for name, array in problem.items()}
    actual = octofold.attention(**tensors, causal=True).transpose(1, 2).float()
    torch.testing.assert_close(actual, expected, atol=3e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic, rng):
    torch = pytest.importorskip("torch")

    def attend(problem):
        options = {"causal": True, "window": (20, None), "softmax_scale": 0.02}
        pair = octofold.attention(**problem, **options, return_log_sum_exp=True)
        out = torch.empty_like(problem["q"])
        given = octofold.attention(**problem, **options, out=out)
        return *pair, given

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for queries, keys in ((5, 70), (90, 90), (1, 3)) if dynamic else ((5, 70),):
        problem = {name: cases.to_torch(a) for name, a in dense(rng, 2, queries, keys).items()}
        for left, right in zip(compiled(problem), attend(problem), strict=True):
            assert torch.equal(left, right)


def test_has_no_gradient(rng):
    torch = pytest.importorskip("torch")
    problem = {name: cases.to_torch(array) for name, array in dense(rng, 1, 2, 5).items()}
    q = problem["q"].requires_grad_()
    with pytest.raises(RuntimeError, match=r"octofold\.attention has no gradient"):
        octofold.attention(**problem).float().sum().backward()
    with pytest.raises(octofold.UnsupportedError, match="argument 'out': expected nothing to diff"):
        octofold.attention(**problem, out=torch.empty_like(q))


@pytest.mark.parametrize("problem", [dense, packed, paged])
def test_says_what_is_wrong_of_every_layout(problem, rng):
    sizes = {dense: (2, 3, 20), packed: ([3, 2], [20, 9]), paged: (2, [20, 9])}[problem]
    sound = problem(rng, *sizes)
    octofold.attention(**sound)
    for name, change in (
        ("q", lambda x: x.astype(np.float32)),
        ("q", lambda x: x[..., :7]),
        ("q", lambda x: x[..., ::2]),
        ("q", lambda x: x[..., :3, :]),
        ("q", lambda x: x[..., 0]),
        ("k", lambda x: x.astype(np.float16)),
        ("k", lambda x: x[..., :32]),
        ("k", lambda x: x[..., ::2]),
        ("v", lambda x: x[..., :1, :]),
        ("v", lambda x: x[:1]),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=r"attention: argument '[qkv]'"):
            octofold.attention(**(sound | {name: change(sound[name])}))


def test_says_what_is_wrong(rng):
    sound = dense(rng, 2, 3, 20)
    in_pages, behind = paged(rng, 2, [20, 9]), packed(rng, [3, 2], [20, 9])

    def call(problem, changes=None, **options):
        return lambda: octofold.attention(**(problem | (changes or {})), **options)

    float32 = np.ones((2, 2), np.float32)
    for wrong, message in (
        (call(sound, window=(5, 2), causal=True), "argument 'window': expected no keys behind"),
        (call(sound, window=(5,)), "argument 'window': expected None, or two whole numbers"),
        (call(sound, window=3), "argument 'window': expected None, or two whole numbers"),
        (call(sound, window=(-2, 0)), "argument 'window': expected None, or two whole numbers"),
        (call(sound, softmax_scale=0), "'softmax_scale': expected None, or a number other"),
        (call(sound, softmax_scale=1e-50), "'softmax_scale': expected None, or a number other"),
        (call(sound, softmax_scale="1"), "argument 'softmax_scale': expected a number"),
        (call(sound, compute="fp16"), "compute 'fp16' is not one of: exact, fp8"),
        (call(sound, compute=8), "argument 'compute': expected text"),
        (call(sound, {"q": 1.5}), "argument 'q': expected"),
        (call(sound, {"k": None}), "argument 'k': expected"),
        (call(sound, {"k_scale": np.ones(3, np.float32)}), "argument 'k[._]scale': expected"),
        (call(sound, {"v_scale": np.ones(1)}), "argument 'v[._]scale': expected dtype float32"),
        (call(in_pages, {"v_scale": float32}), "argument 'v[._]scale': expected"),
        (call(in_pages, {"key_counts": None}), "argument 'key_counts'"),
        (call(in_pages, {"key_counts": np.int32([20])}), "argument 'key_counts'"),
        (call(in_pages, {"key_counts": np.int64([20, 9])}), "argument 'key_counts'"),
        (call(in_pages, {"key_counts": np.int32([20, 99])}), "argument 'key_counts'"),
        (call(in_pages, {"key_counts": np.int32([-1, 9])}), "argument 'key_counts'"),
        (call(in_pages, {"page_table": 99 + 0 * in_pages["page_table"]}), "'page_table'"),
        (call(in_pages, {"page_table": in_pages["page_table"][0]}), "'page_table'"),
        (call(sound, {"key_offsets": np.int32([0, 5, 9])}), "argument 'key_offsets'"),
        (call(behind, {"key_counts": np.int32([5, 5])}), "argument 'key_counts'"),
        (call(behind, {"query_offsets": np.int32([0, 3])}), "argument '(key|query)_offsets'"),
        (call(behind, {"query_offsets": np.int32([0, 9, 5])}), "argument 'query_offsets'"),
        (call(behind, {"key_offsets": np.int32([0, 9, 99])}), "argument 'key_offsets'"),
        (call(sound, out=np.empty((2, 3, 4, 64), np.float32)), "argument 'out': expected"),
        (call(sound, out=np.empty((2, 3, 4, 32), np.float16)), "argument 'out': expected"),
        (call(sound, out=sound["q"]), "argument 'out': expected memory of its own"),
    ):  # fmt: skip
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            wrong()


def test_workspace_is_that_of_the_library():
    for rows in (0, 1, 2, 255, 256, 257, 8191, 8192, 8193, 16384, 16385):
        size = _workspace_size((1, rows, 1, 72))
        assert size == library.attention_workspace_size(rows, 1, 72, None)
        assert _workspace_size((rows, 1, 72)) == size
        for keys in (0, 1, 1024, 1025, 3072, 3073, 70_000, 10**6):
            size = _workspace_size((rows, 1, 72), keys)
            assert size == library.attention_workspace_size(rows, 1, 72, keys)
