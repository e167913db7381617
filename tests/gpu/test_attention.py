"""Attention of torch's tensors against FP64: every layout, type, head size and scale, few queries
and many, the same bits again, and offsets, counts and tables that lie."""

import numpy as np
import octofold
import pytest

from tests.gpu.attention_support import FEW, LONG, MANY, assert_attention, numbers, on_device
from tests.gpu.gpu_support import (
    DEVICE,
    HALVES,
    ON_GPU,
    Surrounded,
    assert_same_bits,
    needs_gpu,
    refuses_bfloat16,
    torch,
    where_bfloat16_is_refused,
)
from tests.python import attention_cases as cases
from tests.python.attention_cases import dense, packed, paged, with_scales

KINDS = ["e4m3 e4m3", "e5m2 e4m3", "e4m3 e5m2", "e5m2 e5m2"]


@pytest.mark.parametrize("size", [8, 24, 32, 64, 72, 96, 128, 136, 200, 256, 264, 512])
@pytest.mark.parametrize("q", HALVES)
def test_of_head_sizes(size, q, rng):
    for sizes in (FEW, MANY):
        problem = dense(rng, *sizes, size=size, q=q)
        assert_attention(with_scales(rng, problem, 1, 1), causal=True)


@pytest.mark.parametrize(
    "sizes",
    [(192, 128), (64, 128), (24, 136), (256, 64), (64, 256), (72, 264), (512, 256), (576, 512)],
)
@pytest.mark.parametrize("q", HALVES)
def test_of_values_of_another_size(sizes, q, rng):
    for problem in (
        dense(rng, *FEW, size=sizes[0], q=q),
        dense(rng, *MANY, 2, 1, size=sizes[0], q=q),
        packed(rng, [3, 0, 70], [300, 4, 170], 2, 1, size=sizes[0], q=q),
        paged(rng, 1, [300, 33], size=sizes[0], q=q),
    ):
        problem = cases.with_values(rng, problem, sizes[1])
        assert_attention(with_scales(rng, problem, 1, 1), causal=True)
    problem = cases.with_values(rng, paged(rng, 70, [400, 75], 32, size=sizes[0], q=q), sizes[1])
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, pages), window=(100, 3))


# A query of 128 heads is two tiles of Hopper's products. Other kernels compute latents of up to 256
# numbers.
@pytest.mark.parametrize(
    ("sizes", "heads"),
    [((576, 512), 128), ((576, 512), 16), ((512, 512), 40), ((320, 256), 64), ((256, 192), 64)],
)
@pytest.mark.parametrize("q", HALVES)
def test_of_latents(sizes, heads, q, rng):
    latent = {"heads": heads, "kv_heads": 1, "size": sizes[0], "q": q}
    for problem, blocks in (
        (dense(rng, 2, 1, 300, **latent), (2, 3, 1)),
        (dense(rng, 1, 3, 90, **latent), (1, 1, 1)),
        (packed(rng, [3, 0, 1], [3, 40, 270], **latent), (313 // 128 + 3, 1)),
    ):
        assert_attention(with_scales(rng, problem, 1, 1), sizes[1], causal=True)
        assert_attention(with_scales(rng, problem, blocks, blocks), sizes[1], window=(100, 3))
    problem = paged(rng, 1, [300, 1, 0, 257], 32, **latent)
    pages = len(problem["k"]), 1
    assert_attention(with_scales(rng, problem, pages, pages), sizes[1], causal=True)
    problem = dense(rng, 1, 1, 1500, **latent, kv="e5m2 e5m2")
    assert_attention(with_scales(rng, problem, 1, 1), sizes[1])


@pytest.mark.parametrize("kv", KINDS)
@pytest.mark.parametrize("q", HALVES)
def test_of_every_pair_of_types(q, kv, rng):
    for sizes in (FEW, MANY):
        for size in (64, 128):
            problem = dense(rng, *sizes, size=size, q=q, kv=kv)
            assert_attention(with_scales(rng, problem, 2, 2))


@pytest.mark.parametrize("kv", ["e4m3 e4m3", "e5m2 e5m2"])
@pytest.mark.parametrize("q", HALVES)
def test_decodes_every_code(q, kv):
    """One key: its weight is 1, so the result is its value."""
    for queries in (1, 64):
        codes = np.arange(256, dtype=np.uint8).reshape(1, 1, 2, 128)
        dtype = cases.codes(np.random.default_rng(0), 1, kv.split()[0]).dtype
        v = codes.view(dtype)
        problem = {"q": np.zeros((1, queries, 2, 128), np.float32), "k": np.zeros_like(v), "v": v}
        problem["q"] = problem["q"].astype(cases.reference.DTYPES[q])
        actual = octofold.attention(**on_device(problem))
        expected = torch.from_numpy(v.astype(np.float32)).to(DEVICE, actual.dtype)
        expected = expected.expand(actual.shape)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@where_bfloat16_is_refused
def test_refuses_bfloat16(rng):
    for sizes in (FEW, MANY):
        tensors = on_device(dense(rng, *sizes, q="bfloat16"))
        with refuses_bfloat16():
            octofold.attention(**tensors)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 5), (12, 4), (16, 1), (40, 1)])
def test_of_grouped_heads(heads, kv_heads, rng):
    for batch, queries, keys in ((3, 1, 260), (1, 2, 260), (1, 70, 130)):
        problem = dense(rng, batch, queries, keys, heads, kv_heads)
        assert_attention(with_scales(rng, problem, 1, kv_heads), causal=True)


@pytest.mark.parametrize("window", [(0, 0), (10, None), (None, 3), (100, 0), (70, 50), (500, 1)])
def test_of_windows(window, rng):
    for queries, keys in ((200, 200), (4, 600), (150, 60)):
        problem = with_scales(rng, dense(rng, 2, queries, keys), 1, 1)
        assert_attention(problem, window=window)


@pytest.mark.parametrize("q", HALVES)
def test_of_sequences_one_behind_another(q, rng):
    for queries, keys in (
        ([3, 0, 170, 1, 65], [300, 4, 170, 700, 0]),
        ([1] * 9, [0, 1, 31, 32, 33, 500, 127, 128, 129]),
        ([2, 1], [100, 1000]),
    ):
        problem = packed(rng, queries, keys, q=q)
        blocks = sum(keys) // 128 + len(keys), 2
        for options in ({}, {"causal": True}, {"window": (50, 3)}):
            assert_attention(with_scales(rng, problem, blocks, blocks), **options)


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("q", HALVES)
def test_of_pages(page_size, q, rng):
    for queries, keys in ((1, [900, 1, 0, 257, 16]), (3, [40]), (70, [400, 75])):
        problem = paged(rng, queries, keys, page_size, q=q)
        of_pages = len(problem["k"]), 2
        assert_attention(with_scales(rng, problem, of_pages, of_pages), causal=True)
        assert_attention(with_scales(rng, problem, 2, 1), window=(100, -1))


@pytest.mark.parametrize("queries", [1, 6, 100])
def test_of_scales_of_every_shape(queries, rng):
    problem = dense(rng, 2, queries, 400)
    for k_shape in (1, 2, (2, 4, 2)):
        for v_shape in (None, 2, (2, 4, 2)):
            v_scale = None if v_shape is None else cases.scales(rng, v_shape)
            scaled = problem | {"k_scale": cases.scales(rng, k_shape)}
            assert_attention(scaled if v_scale is None else scaled | {"v_scale": v_scale})


@pytest.mark.parametrize("exponent", [-12, 12])
@pytest.mark.parametrize("q", HALVES)
def test_of_scales_far_from_one(q, exponent, rng):
    """Weights times scales fit into FP16 however large scales are; results may be beyond it."""
    for sizes in (FEW, MANY):
        blocks = sizes[0], -(-sizes[2] // 128), 2
        problem = with_scales(rng, dense(rng, *sizes, q=q), blocks, blocks)
        problem["v_scale"] *= np.float32(2.0**exponent)
        assert_attention(problem)


def test_of_few_sequences_with_many_keys(rng):
    """Keys that several blocks share."""
    for heads, kv_heads, batch in ((1, 1, 1), (8, 1, 1), (8, 2, 3)):
        problem = dense(rng, batch, 1, LONG, heads, kv_heads, 128)
        assert_attention(with_scales(rng, problem, 1, 1))
        assert_attention(with_scales(rng, problem, 1, 1), window=(300, 0))


def test_of_large_scores(rng):
    """The softmax has one key, or a few."""
    for sizes in (FEW, MANY):
        problem = dense(rng, *sizes)
        tensors = on_device(problem)
        expected = cases.attend(**problem, softmax_scale=20)
        out = numbers(octofold.attention(**tensors, softmax_scale=20))
        # Scores near 10^4, whose last bits decide where two are close.
        assert np.mean(abs(out - expected.out) > 0.05 * (1 + expected.magnitudes)) < 0.02
        assert np.isfinite(out).all()


def test_of_views(rng):
    """Heads before queries in memory, keys beside values, rows at multiples of a head only."""
    for sizes in (FEW, MANY):
        for size in (64, 72):
            tensors = on_device(dense(rng, *sizes, size=size))
            expected = octofold.attention(**tensors, softmax_scale=0.02)
            views = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in tensors.items()}
            assert_same_bits(octofold.attention(**views, softmax_scale=0.02), expected)
            both = torch.stack([tensors["k"].view(torch.uint8), tensors["v"].view(torch.uint8)], 3)
            parts = both.view(tensors["k"].dtype)
            views |= {"k": parts[..., 0, :], "v": parts[..., 1, :]}
            out = torch.empty_like(views["q"])
            octofold.attention(**views, softmax_scale=0.02, out=out)
            assert_same_bits(out.contiguous(), expected)


def test_of_memory_at_any_address(rng):
    """One code, or one number, behind an aligned address."""
    for sizes in (FEW, MANY):
        tensors = on_device(dense(rng, *sizes))
        expected = octofold.attention(**tensors, softmax_scale=0.02)
        for name, tensor in tensors.items():
            memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=DEVICE)
            moved = memory[1:].view(tensor.shape).copy_(tensor)
            assert_same_bits(
                octofold.attention(**(tensors | {name: moved}), softmax_scale=0.02), expected
            )


def test_nan_behind_what_counts_is_not_seen(rng):
    for queries in (1, 80):
        problem = paged(rng, queries, [700, 90, 17], 64)  # its pages hold NaN behind the counts
        assert octofold.attention(**on_device(problem), softmax_scale=0.02).isfinite().all()


def test_nan_reaches_who_sees_it(rng):
    for batch, queries, keys in (FEW, MANY):
        problem = dense(rng, batch, queries, keys, 2, 2)
        problem["k"].view(np.uint8)[1, 5, 1, 3] = cases.reference.NAN_CODE
        out = octofold.attention(**on_device(problem), softmax_scale=0.02).isnan()
        assert out[1, :, 1].all()
        assert not out[0].any()
        assert not out[1, :, 0].any()
        problem = dense(rng, batch, queries, keys, 2, 2)
        problem["v"].view(np.uint8)[0, keys - 1, 0, 3] = cases.reference.NAN_CODE
        out = octofold.attention(**on_device(problem), softmax_scale=0.02).isnan()
        assert out[0, :, 0, 3].all()
        assert int(out.sum()) == queries


def hostile_problems(rng):
    """Arguments of attention whose page tables, counts or offsets are false."""
    most = 2**31 - 1
    for queries in (1, 40):
        problem = paged(rng, queries, [90, 40, 64], 32)
        for table in (-1, most, -most, len(problem["k"])):
            yield problem | {"page_table": np.full_like(problem["page_table"], table)}
        for count in (-1, most, -most, 4000):
            yield problem | {"key_counts": np.full(3, count, np.int32)}
    for lengths in ([1, 2, 1], [70, 3, 60]):
        problem = packed(rng, lengths, [100, 60, 64])
        total = sum(lengths)
        for offsets in (
            [total, 60, 2, 0],
            [most] * 4,
            [-most] * 4,
            [-300, 5 * total, 7, -1],
            [0, -most, most, total],
        ):
            for name in ("query_offsets", "key_offsets"):
                yield problem | {name: np.int32(offsets)}
            yield problem | {"query_offsets": np.int32(offsets), "key_offsets": np.int32(offsets)}


@needs_gpu
def test_lies_lead_nowhere_outside(rng):
    """Memory in front of `out` and behind it stays as it was; nothing faults."""
    for problem in hostile_problems(rng):
        tensors = on_device(problem)
        q = tensors["q"]
        rows = q.numel() // q.shape[-1]
        around = Surrounded(3 * rows, q.shape[-1], q.dtype)
        middle = around.view[rows : 2 * rows]
        scaled = {"k_scale": torch.ones(1, device=DEVICE)}
        octofold.attention(**tensors, **scaled, causal=True, out=middle.view(q.shape))
        torch.cuda.synchronize()
        assert around.view[:rows].isnan().all()
        assert around.view[2 * rows :].isnan().all()


@pytest.mark.skipif(ON_GPU, reason="a GPU holds them to what there is")
def test_lies_are_said(rng):
    for problem in hostile_problems(rng):
        with pytest.raises(octofold.InvalidArgumentError, match=r"argument '(page|key|query)_"):
            octofold.attention(**on_device(problem))


@needs_gpu
def test_in_a_graph_and_on_a_stream(rng):
    for problem in (dense(rng, *MANY), paged(rng, 1, [3000, 40])):
        tensors = on_device(problem)
        expected = octofold.attention(**tensors, softmax_scale=0.02)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = octofold.attention(**tensors, softmax_scale=0.02)
        captured.fill_(torch.nan)
        graph.replay()
        assert_same_bits(captured, expected)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        results = [octofold.attention(**tensors, softmax_scale=0.02, stream=stream)]
        out = torch.empty_like(expected)
        results.append(octofold.attention(**tensors, softmax_scale=0.02, out=out, stream=stream))
        torch.cuda.synchronize()
        for result in results:
            assert_same_bits(result, expected)


@needs_gpu
def test_graphs_follow_counts_and_tables(rng):
    """A captured call computes what its arrays say at the replay."""
    first, second = (paged(rng, 1, keys, 32) for keys in ([300, 20], [17, 310]))
    tensors = on_device(first)
    octofold.attention(**tensors, softmax_scale=0.02)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = octofold.attention(**tensors, softmax_scale=0.02)
    for name, tensor in on_device(second).items():
        tensors[name].view(torch.uint8).copy_(tensor.view(torch.uint8))
    graph.replay()
    expected = cases.attend(**second, softmax_scale=0.02)
    cases.assert_attended(numbers(captured), None, expected, "float16")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
def test_compiles_whole(backend, rng):
    def attend(q, k, v):
        pair = octofold.attention(q, k, v, causal=True, softmax_scale=0.02, return_log_sum_exp=True)
        return *pair, octofold.attention(q, k, v, softmax_scale=0.02, out=torch.empty_like(q))

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=backend)
    for queries, keys in ((5, 70), (190, 190), (1, 3)):
        parts = on_device(dense(rng, 2, queries, keys)).values()
        for left, right in zip(compiled(*parts), attend(*parts), strict=True):
            assert_same_bits(left, right)
