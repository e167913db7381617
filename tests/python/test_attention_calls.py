"""Calls of attention on the CPU: beside torch's own attention, and what is refused. Results are
test_attention.py's."""

import numpy as np
import octofold
import pytest
from octofold import attention
from octofold._core.library import library
from octofold._ops.attention import _workspace_size

from tests.python import attention_cases as cases
from tests.python.attention_cases import dense, packed, paged, with_scales


def test_beside_scaled_dot_product_attention(rng):
    torch = pytest.importorskip("torch")
    problem = with_scales(rng, dense(rng, 2, 60, 60, 4, 2), 1, 1)
    q, k, v = (cases.to_torch(problem[name]).float().transpose(1, 2) for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k * problem["k_scale"][0], v * problem["v_scale"][0], is_causal=True, enable_gqa=True
    )
    tensors = {name: cases.to_torch(array) for name, array in problem.items()}
    actual = attention(**tensors, causal=True).transpose(1, 2).float()
    torch.testing.assert_close(actual, expected, atol=3e-3, rtol=2e-3)


def test_has_no_gradient(rng):
    torch = pytest.importorskip("torch")
    problem = {name: cases.to_torch(array) for name, array in dense(rng, 1, 2, 5).items()}
    q = problem["q"].requires_grad_()
    with pytest.raises(RuntimeError, match=r"octofold\.attention has no gradient"):
        attention(**problem).float().sum().backward()
    with pytest.raises(octofold.UnsupportedError, match="argument 'out': expected nothing to diff"):
        attention(**problem, out=torch.empty_like(q))


@pytest.mark.parametrize("problem", [dense, packed, paged])
def test_says_what_is_wrong_of_every_layout(problem, rng):
    sizes = {dense: (2, 3, 20), packed: ([3, 2], [20, 9]), paged: (2, [20, 9])}[problem]
    sound = problem(rng, *sizes)
    attention(**sound)
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
            attention(**(sound | {name: change(sound[name])}))


def test_says_what_is_wrong(rng):
    sound = dense(rng, 2, 3, 20)
    in_pages, behind = paged(rng, 2, [20, 9]), packed(rng, [3, 2], [20, 9])

    def call(problem, changes=None, **options):
        return lambda: attention(**(problem | (changes or {})), **options)

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
