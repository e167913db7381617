"""Attention with FP8 scores against FP64 of the codes of queries, and where there are none."""

import numpy as np
import octofold
import pytest

from tests.gpu.attention_support import FEW, LONG, MANY, assert_attention, numbers, on_device
from tests.gpu.gpu_support import DEVICE, HALVES, ON_GPU, assert_same_bits, needs_gpu
from tests.gpu.targets import does_what_hopper_does
from tests.python import attention_cases as cases
from tests.python.attention_cases import dense, packed, paged, with_scales

# Tensor cores sum 128 products of codes with about 14 bits (docs/numerics.md).
OF_FP8_TERMS = 5e-4 if ON_GPU else 0.0
HAS_FP8_SCORES = does_what_hopper_does(DEVICE.type)
has_fp8_scores = pytest.mark.skipif(
    not HAS_FP8_SCORES, reason="Hopper's own kernels have FP8 scores"
)


@has_fp8_scores
@pytest.mark.parametrize("size", [8, 24, 64, 72, 96, 128])
@pytest.mark.parametrize("kv", ["e4m3 e4m3", "e5m2 e4m3"])
@pytest.mark.parametrize("q", HALVES)
def test_of_fp8_scores(size, kv, q, rng):
    """Results are as FP64 has them for codes of queries."""
    fp8 = {"compute": "fp8", "of_terms": OF_FP8_TERMS}
    problem = dense(rng, *MANY, size=size, q=q, kv=kv)
    blocks = MANY[0], -(-MANY[2] // 128), 2
    assert_attention(with_scales(rng, problem, 1, 1), causal=True, **fp8)
    assert_attention(with_scales(rng, problem, blocks, blocks), window=(100, 3), **fp8)
    problem = packed(rng, [70, 0, 170, 65], [70, 4, 300, 0], 2, 1, size=size, q=q, kv=kv)
    assert_attention(with_scales(rng, problem, 1, 1), causal=True, **fp8)
    problem = paged(rng, 70, [400, 75], 32, size=size, q=q, kv=kv)
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, 1), causal=True, **fp8)
    assert_attention(with_scales(rng, problem, 2, pages), softmax_scale=-0.05, **fp8)


@has_fp8_scores
@pytest.mark.parametrize("sizes", [(128, 64), (64, 128), (96, 256)])
@pytest.mark.parametrize("q", HALVES)
def test_of_values_of_another_size(sizes, q, rng):
    fp8 = {"compute": "fp8", "of_terms": OF_FP8_TERMS}
    problem = cases.with_values(rng, dense(rng, *MANY, size=sizes[0], q=q), sizes[1])
    assert_attention(with_scales(rng, problem, 1, 1), causal=True, **fp8)
    problem = cases.with_values(rng, paged(rng, 70, [400, 75], 32, size=sizes[0], q=q), sizes[1])
    pages = len(problem["k"]), 2
    assert_attention(with_scales(rng, problem, pages, pages), softmax_scale=-0.05, **fp8)


@has_fp8_scores
def test_fp8_scores_of_few_rows_with_many_keys(rng):
    """Keys that several blocks share."""
    problem = with_scales(rng, dense(rng, 1, 40, LONG, 1, 1, 128), 1, 1)
    assert_attention(problem, compute="fp8", of_terms=OF_FP8_TERMS)


@has_fp8_scores
@pytest.mark.parametrize("q", HALVES)
def test_fp8_scores_of_zeros_and_nan(q, rng):
    """Zeros have scores of 0, NaN and infinity make NaN of their own row."""
    problem = with_scales(rng, dense(rng, 1, 80, 200, 1, 1, 64, q=q), 1, 1)
    problem["q"][0, 1] = 0
    problem["q"][0, 2, 0, 5] = np.nan
    problem["q"][0, 70, 0, 63] = -np.inf
    out, logarithms = octofold.attention(
        **on_device(problem), compute="fp8", return_log_sum_exp=True
    )
    expected = np.isin(np.arange(80), [2, 70])
    assert np.array_equal(np.isnan(numbers(out)[0, :, 0]).all(-1), expected)
    assert np.array_equal(np.isnan(numbers(out)[0, :, 0]).any(-1), expected)
    assert np.array_equal(np.isnan(numbers(logarithms)[0, 0]), expected)
    np.testing.assert_allclose(numbers(logarithms)[0, 0, 1], np.log(200), rtol=1e-5)


@needs_gpu
def test_fp8_scores_are_allowed_everywhere(rng):
    """If kernels have no FP8 scores, results have the bits of exact ones."""
    many = MANY if HAS_FP8_SCORES else (1, 70, 130)
    sizes = (136, 192, 512) if HAS_FP8_SCORES else (64, 128, 512)
    problems = [dense(rng, *FEW, size=128), *(dense(rng, *many, size=size) for size in sizes)]
    problems.append(cases.with_values(rng, dense(rng, *MANY, size=192), 128))
    for problem in problems:
        tensors = on_device(with_scales(rng, problem, 1, 1))
        exact = octofold.attention(**tensors, compute="exact")
        assert_same_bits(octofold.attention(**tensors, compute="fp8"), exact)
