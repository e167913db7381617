"""gemm() that casts its activations on the GPU: the same bits as of quantize() and gemm() by the
same configuration; every kernel, on ragged shapes, into poisoned memory."""

import itertools

import octofold
import pytest
from octofold import tuning

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    Surrounded,
    assert_same_bits,
    gemm_by,
    needs_gpu,
    normal,
    operand,
    poison,
    product_candidates,
    rows_major,
    skip_without,
    surrounded_copy,
    torch,
    with_data,
    with_scale,
)
from tests.python.casting import RULES

skip_without("products that cast A")

CANDIDATES = product_candidates("gemm", "cast_from bfloat16")
WIDE = ("bfloat16", "float16", "float32")

# One row and the least K; rows of all turns of a stage, and of more tiles than one; tails of
# tiles, of slices and of scale blocks; K of fewer stages than the ring has, of as many, of more;
# fewer blocks of K than slices; more tiles than blocks of threads run at one time.
SHAPES = (
    (1, 1, 16),
    (1, 128, 128),
    (2, 65, 4112),
    (3, 384, 400),
    (5, 200, 256),
    (7, 130, 1040),
    (8, 2112, 7168),
    (9, 72, 272),
    (13, 264, 656),
    (16, 4096, 512),
    (17, 100, 2064),
    (31, 640, 384),
    (32, 136, 1152),
    (47, 96, 912),
    (64, 512, 2048),
    (65, 328, 272),
    (130, 200, 144),
    (5, 33000, 272),
)


def rows_of(generator, m, k, dtype="bfloat16"):
    """x, with scales that differ from row to row and from block to block."""
    x = normal(generator, m, k)
    x *= torch.exp2(4 * torch.rand((m, 1), generator=generator, device=DEVICE) - 2)
    x *= torch.exp2(3 * torch.rand((1, -(-k // 128)), generator=generator, device=DEVICE) - 2)[
        :, torch.arange(k, device=DEVICE) // 128
    ]
    return x.to(DTYPES[dtype])


def case(generator, m, n, k, dtype="bfloat16", granularity="128x128"):
    return rows_of(generator, m, k, dtype), operand(generator, n, k, granularity=granularity)


def cast_by(candidate, x, b, out, bias=None, dtype="e4m3", **cast):
    format = octofold.Format(dtype, **cast)
    with tuning.using(candidate):
        octofold.gemm(x, b, bias=bias, format=format, out=out)


def apart(candidate, x, b, out_dtype="bfloat16", bias=None, dtype="e4m3", **cast):
    """quantize() and gemm() by the same configuration. Both operands fit TMA, as those of the
    product that casts do."""
    a = octofold.quantize(x, octofold.Format(dtype, **cast))
    if a.shape[1] % 16:
        a = with_data(a, surrounded_copy(a.data, -a.shape[1] % 16))
    m, n = x.shape[0], b.shape[0]
    out = poison(m * n, DTYPES[out_dtype]).view(m, n)
    gemm_by(candidate, a, b, out, bias=bias)
    return out


def check(candidate, x, b, out_dtype="bfloat16", bias=None, padding=0, **options):
    m, n = x.shape[0], b.shape[0]
    expected = apart(candidate, x, b, out_dtype, bias, **options)
    out = Surrounded(m, n, DTYPES[out_dtype], padding=padding)
    cast_by(candidate, x, b, out.view, bias, **options)
    assert_same_bits(out.view.contiguous(), expected)
    out.assert_only_view_written()


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_every_candidate(candidate, generator):
    for shape in SHAPES:
        check(candidate, *case(generator, *shape))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("dtype", WIDE)
def test_every_type(candidate, dtype, generator):
    for shape, out_dtype in zip(SHAPES[3::4], itertools.cycle(WIDE)):
        x, b = case(generator, *shape, dtype)
        for bias in (
            None,
            normal(generator, shape[1]),
            normal(generator, shape[1], dtype=out_dtype),
        ):
            check(candidate, x, b, out_dtype, bias)


@pytest.mark.parametrize("candidate", CANDIDATES[::5])
@pytest.mark.parametrize("dtype", WIDE)
def test_rows_at_any_address(candidate, dtype, generator):
    """Rows of x may begin anywhere, and K be no multiple of anything, as long as the rows of b
    begin at multiples of 16 bytes."""
    for m, n, k in ((5, 136, 272), (9, 64, 127), (16, 100, 300), (33, 70, 1), (3, 8, 1283)):
        x, b = case(generator, m, n, k, dtype)
        b = with_data(b, surrounded_copy(b.data, -k % 16))
        for padding, offset in ((0, 0), (8, 16), (1, 0), (3, 5)):
            check(candidate, surrounded_copy(x, padding, offset), b, padding=padding)


@pytest.mark.parametrize("candidate", CANDIDATES[::5])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_every_granularity_of_the_weight(candidate, granularity, generator):
    for m, n, k in ((5, 136, 272), (16, 384, 1040)):
        x, b = case(generator, m, n, k, granularity=granularity)
        check(candidate, x, b)
        check(candidate, x, b, "float32", dtype="e5m2")
        if b.scale.dim() == 2:
            check(candidate, x, with_scale(b, rows_major(b.scale)))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule, generator):
    """Magnitudes of all sizes too, and rows of zeros, where a factor may be infinite."""
    candidate = CANDIDATES[0]
    for dtype in WIDE:
        x, b = case(generator, 16, 136, 400, dtype)
        exponents = (
            torch.linspace(-14, 14, 16) if dtype == "float16" else torch.linspace(-60, 60, 16)
        )
        x *= torch.exp2(exponents.to(DEVICE))[:, None].to(x.dtype)
        for power_of_two, overflow in itertools.product((False, True), ("saturate", "nan")):
            cast = {"power_of_two": power_of_two, "overflow": overflow, "rule": rule}
            x[7] = 0 if overflow == "nan" else x[6]
            expected = apart(candidate, x, b, "float32", **cast)
            out = torch.empty_like(expected)
            cast_by(candidate, x, b, out, **cast)
            assert_same_nan(out, expected)


def assert_same_nan(out, expected):
    """NaN where the other has NaN, of any bits; elsewhere the same bits."""
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(out), nan)
    assert_same_bits(out[~nan], expected[~nan])


@pytest.mark.parametrize("candidate", CANDIDATES[::3])
def test_nan_and_infinity_are_handed_on(candidate, generator):
    x, b = case(generator, 13, 136, 400)
    x[3, 5], x[7, 399], x[9, 130] = torch.nan, torch.inf, -torch.inf
    expected = apart(candidate, x, b)
    out = torch.empty_like(expected)
    cast_by(candidate, x, b, out)
    assert_same_nan(out, expected)
    assert set(torch.isnan(out).any(1).nonzero().flatten().tolist()) == {3, 7, 9}


@needs_gpu
@pytest.mark.parametrize("candidate", [None, *CANDIDATES[::5]])
def test_in_a_graph(candidate, generator):
    """One after another, and after what writes x: it is not read before that has ended."""
    x, b = case(generator, 16, 512, 1024)
    source = [rows_of(generator, 16, 1024) for _ in range(3)]
    expected = [x.new_empty(16, 512) for _ in source]
    for x_, out in zip(source, expected, strict=True):
        cast_by(candidate, x_, b, out)
    torch.cuda.synchronize()
    outs = [poison(16 * 512, torch.bfloat16).view(16, 512) for _ in source]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x_, out in zip(source, outs, strict=True):
            x.copy_(x_)
            cast_by(candidate, x, b, out)
    for _ in range(3):
        for out in outs:
            out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        for out, other in zip(outs, expected, strict=True):
            assert_same_bits(out, other)


@needs_gpu
def test_after_a_kernel_that_lets_it_start_early(generator):
    """x is what a product before it writes, in the same stream."""
    x, b = case(generator, 16, 1024, 1024)
    for _ in range(20):
        y = octofold.gemm(x, b)
        z = octofold.gemm(y, b)
    torch.cuda.synchronize()
    assert_same_bits(z, octofold.gemm(y.clone(), b))


@needs_gpu
def test_layers_use_it(generator):
    """For few tokens (src/ops/linear.cpp), and not for more."""
    few = 8
    linear = torch.nn.Linear(1024, 384, device=DEVICE, dtype=torch.bfloat16)
    layer = octofold.nn.inference_linear(linear)
    bias, format = linear.bias.detach(), layer.weight.recipe.output.a
    for tokens in (1, few, few + 1):
        x = rows_of(generator, tokens, 1024)
        within = octofold.gemm(x, layer.weight.scaled, bias=bias, format=format)
        cast = octofold.quantize(x, format)
        after = octofold.gemm(cast, layer.weight.scaled, bias=bias)
        with torch.no_grad():
            y = layer(x)
        assert_same_bits(y, within if tokens <= few else after)
