"""Sizes that are for a GPU alone: offsets that 32 bits do not hold, and more tiles than run at one
time."""

import itertools

import octofold
import pytest
from octofold_tool.gemm_options import DEEPSEEK_V3

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    HALVES,
    PAIR_NAMES,
    PAIRS,
    assert_close,
    assert_same_bits,
    bits,
    check_product,
    needs,
    needs_gpu,
    normal,
    operand,
    operands,
    product,
    torch,
)
from tests.gpu.product_support import assert_product, rows_of, values_of
from tests.python.casting import cast_side

pytestmark = needs_gpu


def codes(*shape, dtype="e4m3"):
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE).view(DTYPES[dtype])


def test_transposes_of_the_largest_strides():
    """Offsets beyond 2^31 bytes."""
    x = codes(70_000, 32_768)
    out = octofold.ops.transpose(x)
    for rows in (slice(0, 300), slice(65_500, 65_700), slice(69_900, 70_000)):
        assert torch.equal(bits(out)[:, rows], bits(x)[rows].mT)


def test_dots_of_long_vectors(generator):
    # Parts of several spans: more than 1024 of 8192 elements.
    for size in (8192 * 1024, 8192 * 1024 + 1, 30_000_001):
        a, b = (rows_of(generator, 1, size, dtype)[0] for dtype in ("e4m3", "e5m2"))
        left, right = a.double(), b.double()
        actual = octofold.ops.dot(a, b)
        assert (actual.dtype, actual.device) == (torch.float32, a.device)
        assert abs(actual - left @ right) <= 2e-6 * (left.abs() @ right.abs()) + 1e-30
        assert_same_bits(octofold.ops.dot(a, b), actual)


def cast(x, kind, matrices=None, **options):
    """The casts of rows and of transposes, each only if `kind` has its granularity."""
    rows, transposed = (
        None if unit is None else octofold.Format(granularity=unit, **options) for unit in kind
    )
    return octofold.ops.cast(x, rows=rows, transposed=transposed, matrices=matrices)[:2]


@pytest.mark.parametrize("kind", [("128x128", "128x128"), ("1x128", "128x128")])
def test_stacks_of_more_elements_than_32_bits_count(kind):
    """33 matrices of 2^26 elements: the last one begins behind 2^31."""
    x = torch.randn(8192, 8192, device=DEVICE).bfloat16().expand(33, 8192, 8192).contiguous()
    expected = cast(x[0], kind)
    for stack, alone in zip(cast(x, kind, 33), expected, strict=True):
        for index in (0, 31, 32):
            assert torch.equal(bits(stack.data[index]), bits(alone.data))
            assert torch.equal(stack.scale[index], alone.scale)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_casts_of_more_tiles_than_run_at_one_time(granularity, generator):
    x = normal(generator, 8192, 8192, dtype="bfloat16")
    out, transposed = cast(x, (granularity, granularity))
    for transpose, one in ((False, out), (True, transposed)):
        assert one.to("cpu").equals(cast_side(x.cpu(), granularity, transpose))


@needs("products with FP8 weights")
def test_few_rows_and_large_weights(generator):
    for (n, k), rows, x_dtype in itertools.product(
        ((8192, 8192), (16384, 4096)), (1, 4, 16), (*HALVES, "float32", "e4m3")
    ):
        w = operand(generator, n, k, "e4m3", "128x128")
        x = rows_of(generator, rows, k, x_dtype)
        out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
        assert_product(out, values_of(x), values_of(w))
        assert_same_bits(out, octofold.gemm_weight_only(x, w, out_dtype=torch.float32))


@needs("products with FP8 weights")
def test_weights_of_more_than_two_gigabytes(generator):
    n, k = 131_200, 16_384
    codes = torch.zeros(n, k, dtype=torch.uint8, device=DEVICE)
    codes[-300:] = 0x38  # 1
    w = octofold.ScaledTensor(
        codes.view(torch.float8_e4m3fn), torch.ones(1, device=DEVICE), "tensor"
    )
    x = torch.ones(1, k, dtype=torch.float16, device=DEVICE)
    out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
    assert not bool(out[0, :-300].any())
    assert out[0, -300:].unique().tolist() == [k]


@needs("products")
@pytest.mark.parametrize(("n", "k"), DEEPSEEK_V3)
@pytest.mark.parametrize("m", [1, 64, 128, 1024, 4096])
def test_layers_of_deepseek(m, n, k, generator):
    check_product(*operands(generator, m, n, k, ("1x128", "128x128")))


@needs("products")
@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32", "float16"])
def test_products_that_are_large_and_ragged(out_dtype, pair, generator):
    check_product(*operands(generator, 4099, 5003, 7200, pair), out_dtype)


@needs("products")
@pytest.mark.parametrize("shape", [(4096, 7168, 4096), (7168, 2048, 8192), (7168, 16384, 4096)])
def test_weight_gradients(shape, generator):
    """1x128 × 1x128, added to FP32 in place."""
    a, b = operands(generator, *shape, ("1x128", "1x128"))
    out = 1000 * normal(generator, *shape[:2])
    expected = product(a, b, out)
    assert octofold.gemm(a, b, out=out, c=out) is out
    assert_close(out, expected)


@needs("products")
def test_products_of_more_than_2_to_the_31_elements(generator):
    """Offsets into D need 64 bits."""
    a, b = operands(generator, 70000, 32768, 128, ("1x128", "128x128"))
    out = octofold.gemm(a, b)
    for rows in (slice(0, 300), slice(65500, 66000), slice(-300, None)):
        some = octofold.ScaledTensor(a.data[rows], a.scale[rows], a.granularity)
        assert_close(out[rows], product(some, b))
    assert torch.all(torch.isfinite(out))
