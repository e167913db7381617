"""Products on the GPU against FP64: the case table, tails of every dimension, large shapes."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    PAIR_NAMES,
    PAIRS,
    Surrounded,
    assert_close,
    assert_fast_accumulation_close,
    assert_same_bits,
    normal,
    operand,
    operands,
    product,
    skip_without,
    surrounded_copy,
    torch,
    with_data,
)
from tests.python.gemm_cases import CASE_NAMES, CASES

skip_without("products")

both_granularities = pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)


def check(a, b, out_dtype="bfloat16"):
    """Multiply into poisoned memory and compare."""
    out = Surrounded(a.shape[0], b.shape[0], DTYPES[out_dtype])
    assert octofold.gemm(a, b, out=out.view) is out.view
    assert_close(out.view, product(a, b))


@pytest.mark.parametrize("case", CASES, ids=CASE_NAMES)
def test_case(case, generator):
    m, n, k, padding = (int(case[name]) for name in ("m", "n", "k", "row_padding"))
    dtype = DTYPES[case["d_dtype"]]
    a, b = (
        operand(generator, *shape, case[f"{x}_dtype"], case[f"granularity_{x}"], power_of_two)
        for x, shape in (("a", (m, k)), ("b", (n, k)))
        for power_of_two in [case["power_of_two"] == "1"]
    )
    a, b = (with_data(x, surrounded_copy(x.data, padding)) for x in (a, b))
    out = Surrounded(m, n, dtype, padding)
    c = bias = None
    if case["c"] != "none":
        c_dtype = "float32" if case["c"] == "float32" else case["d_dtype"]
        c = surrounded_copy(100 * normal(generator, m, n, dtype=c_dtype), padding)
    if case["bias"] != "none":
        bias_dtype = "float32" if case["bias"] == "float32" else case["d_dtype"]
        bias = 100 * normal(generator, n, dtype=bias_dtype)

    fresh = octofold.gemm(a, b, c=c, bias=bias, out_dtype=dtype)
    expected = product(a, b, c, bias)
    if case["c"] == "in_place":
        out.view.copy_(c)
        c = out.view
    assert octofold.gemm(a, b, out=out.view, c=c, bias=bias) is out.view

    assert_close(out.view, expected)
    assert fresh.device.type == DEVICE.type
    assert_same_bits(fresh, out.view)  # the same input, the same bits
    out.assert_only_view_written()


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


# The layers of DeepSeek-V3 that other libraries' benchmarks name, for prefill.
DEEPSEEK_NK = (
    (2112, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
)
large = pytest.mark.skipif(not ON_GPU, reason="takes minutes on a CPU")


@large
@pytest.mark.parametrize(("n", "k"), DEEPSEEK_NK)
@pytest.mark.parametrize("m", [1, 64, 128, 1024, 4096])
def test_deepseek_layer(m, n, k, generator):
    check(*operands(generator, m, n, k, ("1x128", "128x128")))


@large
@both_granularities
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32", "float16"])
def test_large_and_ragged(out_dtype, pair, generator):
    check(*operands(generator, 4099, 5003, 7200, pair), out_dtype)


@large
@pytest.mark.parametrize("shape", [(4096, 7168, 4096), (7168, 2048, 8192), (7168, 16384, 4096)])
def test_weight_gradient(shape, generator):
    """1x128 × 1x128, added to FP32 in place."""
    a, b = operands(generator, *shape, ("1x128", "1x128"))
    out = 1000 * normal(generator, *shape[:2])
    expected = product(a, b, out)
    assert octofold.gemm(a, b, out=out, c=out) is out
    assert_close(out, expected)


@large
def test_more_than_2_to_the_31_elements(generator):
    """Offsets into D need 64 bits."""
    a, b = operands(generator, 70000, 32768, 128, ("1x128", "128x128"))
    out = octofold.gemm(a, b)
    for rows in (slice(0, 300), slice(65500, 66000), slice(-300, None)):
        some = octofold.ScaledTensor(a.data[rows], a.scale[rows], a.granularity)
        assert_close(out[rows], product(some, b))
    assert torch.all(torch.isfinite(out))


@pytest.mark.parametrize("pair", PAIRS[:2], ids=PAIR_NAMES[:2])
def test_fast_accumulation_is_close(pair, generator):
    a, b = operands(generator, 300, 500, 4096, pair)
    expected = product(a, b)
    out = octofold.gemm(a, b, out_dtype="float32", fast_accumulation=True)
    assert_fast_accumulation_close(out, expected)
