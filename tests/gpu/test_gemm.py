"""Products on the GPU against FP64: tails of every dimension, beside the tiles' sizes."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DTYPES,
    PAIR_NAMES,
    PAIRS,
    Surrounded,
    assert_close,
    assert_fast_accumulation_close,
    operands,
    product,
    skip_without,
)

skip_without("products")

both_granularities = pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)


def check(a, b, out_dtype="bfloat16"):
    """Multiply into poisoned memory and compare."""
    out = Surrounded(a.shape[0], b.shape[0], DTYPES[out_dtype])
    assert octofold.gemm(a, b, out=out.view) is out.view
    assert_close(out.view, product(a, b))


# Beside the tiles' sizes, and beside what TMA, a swizzle atom and a scale block take.
TAILS = (1, 7, 8, 9, 15, 17, 63, 65, 127, 129, 191, 193, 255, 257)
OUT_DTYPES = itertools.cycle(("bfloat16", "float32", "float16"))
TAIL_CASES = [
    (name, size, out_dtype)
    for (name, size), out_dtype in zip(itertools.product("mnk", TAILS), OUT_DTYPES, strict=False)
]


@both_granularities
@pytest.mark.parametrize(("dimension", "size", "out_dtype"), TAIL_CASES)
def test_tail_of_one_dimension(dimension, size, out_dtype, pair, generator):
    shape = {"m": 320, "n": 384, "k": 512, dimension: size}
    check(*operands(generator, **shape, pair=pair), out_dtype)


@both_granularities
@pytest.mark.parametrize("size", [63, 65, 127, 129, 191, 193, 255, 257, 383, 500])
def test_tail_of_all_dimensions(size, pair, generator):
    check(*operands(generator, size, size, size, pair))


@both_granularities
@pytest.mark.parametrize("k", [1, 8, 40, 100, 120, 136, 200, 1000, 1033])
def test_k_that_is_no_multiple_of_16_or_128(k, pair, generator):
    check(*operands(generator, 200, 264, k, pair), "float32")


@both_granularities
@pytest.mark.parametrize("dtypes", list(itertools.product(("e4m3", "e5m2"), repeat=2)))
def test_formats_mix(dtypes, pair, generator):
    check(*operands(generator, 200, 300, 640, pair, dtypes))


@pytest.mark.parametrize("pair", PAIRS[:2], ids=PAIR_NAMES[:2])
def test_fast_accumulation_is_close(pair, generator):
    a, b = operands(generator, 300, 500, 4096, pair)
    expected = product(a, b)
    out = octofold.gemm(a, b, out_dtype="float32", fast_accumulation=True)
    assert_fast_accumulation_close(out, expected)
