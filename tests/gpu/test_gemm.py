"""Products on the GPU of matrices that lie in memory in every allowed way. Sizes of all kinds are
tests/python/test_gemm.py's, the same bits each time test_same_bits.py's."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    DTYPES,
    PAIR_NAMES,
    PAIRS,
    Surrounded,
    assert_close,
    assert_same_bits,
    normal,
    operands,
    poison,
    product,
    rows_major,
    skip_without,
    surrounded_copy,
    torch,
    with_data,
    with_scale,
)

skip_without("products")

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)


# TMA wants addresses and row strides that are multiples of 16 bytes.
@pytest.mark.parametrize(("padding", "offset"), [(1, 0), (8, 0), (0, 1), (0, 8), (3, 5)])
@pytest.mark.parametrize("which", ["a", "b", "both"])
@every_pair
def test_operands_that_tma_cannot_load(pair, which, padding, offset, generator):
    m, n, k = 201, 267, 640
    a, b = operands(generator, m, n, k, pair)
    expected = product(a, b)
    aligned = octofold.gemm(a, b)
    if which != "b":
        a = with_data(a, surrounded_copy(a.data, padding, offset))
    if which != "a":
        b = with_data(b, surrounded_copy(b.data, padding, offset))
    out = Surrounded(m, n, torch.bfloat16)
    octofold.gemm(a, b, out=out.view)
    assert_close(out.view, expected)
    assert_close(aligned, expected)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("padding", "offset"), [(0, 1), (1, 0), (8, 8), (4, 3), (128, 0)])
@every_pair
def test_outputs_and_addends_anywhere(pair, padding, offset, out_dtype, generator):
    m, n, k = 200, 264, 384
    a, b = operands(generator, m, n, k, pair)
    for c_dtype in (None, out_dtype, "float32"):
        c = bias = None
        if c_dtype is not None:
            c, bias = (normal(generator, rows, n, dtype=c_dtype) for rows in (m, 1))
            c = surrounded_copy(100 * c, padding, offset)
            bias = surrounded_copy(100 * bias, 0, offset)[0]
        out = Surrounded(m, n, DTYPES[out_dtype], padding, offset)
        octofold.gemm(a, b, out=out.view, c=c, bias=bias)
        assert_close(out.view, product(a, b, c, bias))
        out.assert_only_view_written()


def gapped(scale):
    """The same values with poison between all of them."""
    memory = poison(6 * scale.numel(), torch.float32)
    strides = (2 * scale.shape[1] * 3, 3) if scale.dim() == 2 else (6,)
    view = memory.as_strided(tuple(scale.shape), strides)
    view.copy_(scale)
    return view


def rows_major_in_poison(scale):
    """The scales as the casts on the GPU write them: strides (1, rows rounded up to 4)."""
    rows, cols = scale.shape
    stride = (rows + 3) // 4 * 4
    view = poison(stride * cols, torch.float32).as_strided((rows, cols), (1, stride))
    view.copy_(scale)
    return view


@pytest.mark.parametrize("layout", [rows_major, rows_major_in_poison, gapped])
@pytest.mark.parametrize(
    "shape", [(256, 384, 512), (131, 97, 300), (1, 264, 1024), (515, 130, 128)]
)
@pytest.mark.parametrize("pair", PAIRS[2:], ids=PAIR_NAMES[2:])
def test_block_scales_in_any_layout(pair, shape, layout, generator):
    """The place of a scale in memory does not change a bit of the product."""
    m, n, k = shape
    a, b = operands(generator, m, n, k, pair)
    row_major = octofold.gemm(a, b)
    assert_close(row_major, product(a, b))
    a, b = (with_scale(x, layout(x.scale)) for x in (a, b))
    assert_same_bits(octofold.gemm(a, b), row_major)


@every_pair
@pytest.mark.parametrize(("m", "n"), [(70, 90), (2000, 3000)])
def test_nothing_to_sum(m, n, pair, generator):
    """With K = 0 the product is 0, and C and the bias are all there is. The large one is given to
    kernels that wait early for what comes."""
    a, b = operands(generator, m, n, 0, pair)
    out = Surrounded(m, n, torch.bfloat16)
    octofold.gemm(a, b, out=out.view)
    assert torch.all(out.view == 0)
    c, bias = normal(generator, m, n), normal(generator, n)
    assert torch.equal(octofold.gemm(a, b, c=c, bias=bias, out_dtype="float32"), c + bias)
