"""Casts and conversions on the GPU: the bytes that the CPU backend gives.

The CPU backend's are compared with independent NumPy code in tests/python/test_quantize.py.
"""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, DTYPES, ON_GPU, bits, normal, surrounded_copy, torch
from tests.python.casting import GRANULARITIES, cast_side, cast_with, only

# One of each form.
RULES = ("deepgemm", "tilekernels", "vllm", "te", "torchao", "torchao-tensor", "deepseek")
RULES += ("transformers", "compressed-tensors")
SOURCES = ("bfloat16", "float16", "float32")
FORMATS = ("e4m3", "e5m2")
OVERFLOWS = ("saturate", "nan")

# Rules, granularities and powers of two with each other; formats and overflow take turns, as
# each combination is a kernel to compile.
OPTIONS = [
    {
        "dtype": FORMATS[(index + index // 2 + index // 8) % 2],
        "granularity": granularity,
        "power_of_two": power_of_two,
        "overflow": OVERFLOWS[(index // 4 + index // 8) % 2],
        "rule": rule,
    }
    for index, (rule, granularity, power_of_two) in enumerate(
        itertools.product(RULES, GRANULARITIES, (False, True))
    )
]
OPTION_NAMES = ["-".join(map(str, options.values())) for options in OPTIONS]
both_ways = pytest.mark.parametrize("transpose", [False, True], ids=["rows", "transposed"])
every_granularity = pytest.mark.parametrize("granularity", GRANULARITIES)
every_source = pytest.mark.parametrize("source", SOURCES)


def spread_out(generator, rows, cols, dtype):
    """Units of very different magnitude, from subnormals to overflow, and special values."""
    exponents = 260 * torch.rand((rows, 1), generator=generator, device=DEVICE) - 140
    x = normal(generator, rows, cols) * torch.exp2(exponents)
    specials = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42, 464.0, 61440.0], device=DEVICE
    )
    where = torch.rand((rows, cols), generator=generator, device=DEVICE) < 0.003
    choice = torch.randint(len(specials), (rows, cols), generator=generator, device=DEVICE)
    x = torch.where(where, specials[choice], x)
    x[rows // 3] = 0
    x[rows // 2] = -0.0
    return x.to(DTYPES[dtype])


def without_nans(scale):
    """Any NaN is as good as another."""
    return torch.where(torch.isnan(scale), torch.nan, scale)


def channel_factors(generator, channels):
    """Factors of very different size, some of which count as 1."""
    exponents = 60 * torch.rand(channels, generator=generator, device=DEVICE) - 30
    factors = torch.exp2(exponents)
    specials = (0.0, -1.0, torch.nan, torch.inf, 1e-42, 3e38, 2.0**-126)
    for index, special in enumerate(specials[:channels]):
        factors[index * channels // len(specials)] = special
    return factors


def assert_same_cast(actual, expected):
    assert actual.granularity == expected.granularity
    assert actual.data.dtype is expected.data.dtype
    assert torch.equal(bits(actual.data.cpu()), bits(expected.data))
    assert actual.scale.shape == expected.scale.shape
    assert torch.equal(
        bits(without_nans(actual.scale.cpu().contiguous())),
        bits(without_nans(expected.scale.contiguous())),
    )


def one_cast(x, transpose=False, scale=None, **options):
    """The cast of x to a format whose options are given one by one."""
    return cast_side(x, octofold.Format(**options), transpose, scale=scale)


def both_casts(x, **options):
    return only(cast_with(x, targets="both", **options))


def check(x, **options):
    assert_same_cast(one_cast(x, **options), one_cast(x.cpu(), **options))


@both_ways
@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_every_rule(options, transpose, generator):
    for source in SOURCES:
        check(normal(generator, 256, 512, dtype=source), **options, transpose=transpose)
        check(spread_out(generator, 264, 400, source), **options, transpose=transpose)


@every_source
@pytest.mark.parametrize("rule", ["vllm-per-token", "torchao"])
def test_transpose_by_channels_beside_rows_of_blocks(rule, source, generator):
    options = {"rule": rule, "transposed_granularity": "channel"}
    for rows, cols in ((256, 512), (264, 400), (129, 77)):
        x = spread_out(generator, rows, cols, source)
        actual = both_casts(x, **options)
        for cast, expected in zip(actual, both_casts(x.cpu(), **options), strict=True):
            assert_same_cast(cast, expected)


@every_source
@pytest.mark.parametrize(
    "rule", ["deepgemm", "vllm-per-token", "te", "torchao", "compressed-tensors"]
)
def test_two_level_scales(rule, source, generator):
    """The bytes of the CPU, from one read beside rows of 1x128, or alone."""
    for (rows, cols), padding in itertools.product(
        ((256, 512), (264, 400), (129, 77), (1, 1), (0, 16), (1000, 24)), (0, 3)
    ):
        x = (
            surrounded_copy(spread_out(generator, rows, cols, source), padding)
            if rows
            else (normal(generator, rows, cols, dtype=source))
        )
        factors = {
            "channel_scale": channel_factors(generator, rows),
            "transposed_channel_scale": channel_factors(generator, cols),
        }
        both = {**factors, "granularity": "128x128"}
        beside_lines = {
            "transposed_granularity": "128x128",
            "transposed_channel_scale": factors["transposed_channel_scale"],
        }
        for options in (both, beside_lines):
            on_cpu = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
            actual = both_casts(x, rule=rule, **options)
            expected = both_casts(x.cpu(), rule=rule, **on_cpu)
            for cast, other in zip(actual, expected, strict=True):
                assert_same_cast(cast, other)
        if rows:
            actual = cast_with(x, targets="both", columns="amax", rule=rule, **beside_lines)
            assert_same_cast(actual[1], expected[1])
            same_numbers(actual.amax, x.cpu().float().abs().amax(0))
        for transpose, factor in zip((False, True), factors.values(), strict=True):
            assert_same_cast(
                cast_side(x, f"128x128 {rule}", transpose, channel_scale=factor),
                cast_side(x.cpu(), f"128x128 {rule}", transpose, channel_scale=factor.cpu()),
            )


@pytest.mark.parametrize("target", SOURCES)
def test_dequantizes_two_level_scales(target, generator):
    for rows, cols in ((256, 512), (133, 301), (0, 5)):
        x, factors = normal(generator, rows, cols), channel_factors(generator, rows)
        cast = octofold.ops.cast(x, rows=octofold.ops.Target("128x128", channel_scale=factors)).rows
        parts = (cast.data.cpu(), cast.scale.cpu(), cast.granularity, factors.cpu())
        same_numbers(cast.dequantize(target), octofold.ScaledTensor(*parts).dequantize(target))


SIZES = ((1, 1), (1, 128), (3, 4096), (128, 129), (129, 8), (257, 136), (1000, 24), (40, 20_000))
EMPTY = ((0, 16), (16, 0), (0, 0))


@both_ways
@every_granularity
def test_ragged_and_empty(granularity, transpose, generator):
    for rows, cols in (*SIZES, *EMPTY, (5, 70_001)):
        x = normal(generator, rows, cols, dtype="bfloat16")
        check(x, granularity=granularity, transpose=transpose)


@both_ways
@every_source
@every_granularity
def test_strides_and_unaligned_addresses(granularity, source, transpose, generator):
    x = spread_out(generator, 136, 272, source)
    for padding, offset in ((16, 0), (1, 0), (0, 1), (5, 3)):
        view = surrounded_copy(x, padding, offset)
        check(view, granularity=granularity, transpose=transpose)
    check(x[::2, 16:], granularity=granularity, transpose=transpose)


@both_ways
@every_granularity
@pytest.mark.parametrize("source", ["bfloat16", "float16"])
def test_all_bit_patterns(source, granularity, transpose):
    patterns = torch.arange(65536, dtype=torch.int32, device=DEVICE).to(torch.int16)
    x = patterns.view(DTYPES[source]).reshape(256, 256)
    for dtype, overflow in itertools.product(FORMATS, OVERFLOWS):
        options = {"dtype": dtype, "overflow": overflow, "transpose": transpose}
        check(x, granularity=granularity, **options)
        # Units with one magnitude each are all codes' neighbourhoods, and no NaN drowns them.
        check(x.t().contiguous(), granularity=granularity, **options)


@every_source
@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_both_ways_are_two_casts(options, source, generator):
    for rows, cols in ((256, 384), (136, 400), (131, 77)):
        x = spread_out(generator, rows, cols, source)
        out, transposed = both_casts(x, **options)
        assert_same_cast(out, one_cast(x.cpu(), **options))
        assert_same_cast(transposed, one_cast(x.cpu(), **options, transpose=True))


# Rows around what 256 threads hold, 512, clusters of 2, 4 and 8 blocks, and more than that; one
# that is not to be copied in whole vectors.
@pytest.mark.parametrize("rule", ["deepgemm", "vllm-per-token"])
@every_source
def test_wide_rows(source, rule, generator):
    for cols in (16_384, 16_392, 32_768, 32_776, 40_007, 53_248, 131_072, 300_000, 500_000):
        x = spread_out(generator, 5, cols, source)
        check(x, granularity="channel", rule=rule)
        # The largest magnitude by turns in each part of the row.
        x = normal(generator, 8, cols, dtype=source)
        x[torch.arange(8), torch.arange(8) * cols // 8 + cols // 16] = 1000
        check(x, granularity="channel", rule=rule)
    # Many more rows than run at one time.
    x = normal(generator, 400, 40_000) * torch.rand((400, 1), generator=generator, device=DEVICE)
    check(x.to(DTYPES[source]), granularity="channel", rule=rule)


@every_granularity
def test_large(granularity, generator):
    """Many more tiles than run at one time."""
    x = normal(generator, 8192, 8192, dtype="bfloat16")
    out, transposed = both_casts(x, granularity=granularity)
    for transpose, cast in ((False, out), (True, transposed)):
        expected = cast_side(x.cpu(), granularity, transpose)
        assert_same_cast(cast, expected)


def test_casts_are_laid_out_for_gemm(generator):
    if not ON_GPU:
        pytest.skip("the CPU's are row-major")
    for rows in (1, 6, 256):
        cast = octofold.quantize(normal(generator, rows, 500))
        assert cast.scale.stride() == (1, (rows + 3) // 4 * 4)
        assert cast.data.stride() == (512, 1)
        moved = octofold.quantize(normal(generator, rows, 500).cpu()).to(DEVICE)
        assert moved.data.stride() == (512, 1)
        assert moved.to("cpu").data.is_contiguous()


def test_same_input_same_bits(generator):
    x = normal(generator, 1024, 4096, dtype="bfloat16")
    for granularity in GRANULARITIES:
        first = octofold.quantize(x, granularity)
        for _ in range(20):
            again = octofold.quantize(x, granularity)
            assert torch.equal(bits(first.data), bits(again.data))
            assert torch.equal(first.scale, again.scale)


# A rule of each form; codes that saturate and codes that are 0, special values, scales of any sign.
@every_source
@every_granularity
@pytest.mark.parametrize("rule", ["deepgemm", "vllm-per-token", "te", "compressed-tensors"])
def test_given_scales(rule, granularity, source, generator):
    for (rows, cols), transpose in itertools.product(((256, 384), (131, 77)), (False, True)):
        options = {"granularity": granularity, "transpose": transpose}
        x = spread_out(generator, rows, cols, source)
        scale = one_cast(x, **options).scale.nan_to_num(1.0, 2.0, -2.0)
        exponents = 40 * torch.rand(scale.shape, generator=generator, device=DEVICE) - 20
        scale = scale * torch.exp2(exponents) * torch.sign(exponents + 18)
        for overflow in OVERFLOWS:
            given = {**options, "rule": rule, "overflow": overflow}
            cast = one_cast(x, scale=scale, **given)
            on_cpu = one_cast(x.cpu(), scale=scale.cpu(), **given)
            assert torch.equal(bits(cast.data.cpu()), bits(on_cpu.data))
            assert torch.equal(bits(cast.scale.cpu()), bits(scale.cpu()))


@every_source
@every_granularity
def test_rows_that_are_repeated_or_overlap(granularity, source, generator):
    x = normal(generator, 140, 400, dtype=source)
    for view in (
        x[:1].expand(200, 400),
        x[3:4, 16:].expand(130, 384),
        x.as_strided((100, 256), (16, 1)),
        x.as_strided((100, 255), (3, 1), 5),
    ):
        for transpose in (False, True):
            check(view, granularity=granularity, transpose=transpose)
        same_numbers(
            octofold.ops.convert_dtype(view, "float32"),
            octofold.ops.convert_dtype(view.cpu(), "float32"),
        )
    wide = normal(generator, 1, 40_000, dtype=source).expand(6, 40_000)
    check(wide, granularity=granularity)


@both_ways
@every_granularity
def test_leading_dimensions(granularity, transpose, generator):
    x = normal(generator, 6 * 40, 272, dtype="bfloat16").view(2, 3, 40, 272)
    check(x, granularity=granularity, transpose=transpose)
    check(x[:, :, :, 16:], granularity=granularity, transpose=transpose)
    check(x[0, 0], granularity=granularity, transpose=transpose)


def same_numbers(actual, expected):
    """Bits, but for NaN in float32: there, any is as good as another."""
    if expected.dtype is torch.float32:
        actual, expected = without_nans(actual), without_nans(expected)
    assert actual.dtype is expected.dtype
    assert torch.equal(bits(actual.cpu()), bits(expected))


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_converts(source, target, generator):
    values = spread_out(generator, 70, 528, "float32")
    for rows, cols, padding, offset in ((70, 528, 0, 0), (13, 301, 2, 1), (1, 500, 0, 0)):
        x = surrounded_copy(
            octofold.ops.convert_dtype(values[:rows, :cols].contiguous(), source), padding, offset
        )
        for overflow in OVERFLOWS:
            actual = octofold.ops.convert_dtype(x, target, overflow=overflow)
            same_numbers(actual, octofold.ops.convert_dtype(x.cpu(), target, overflow=overflow))
    vector = octofold.ops.convert_dtype(values.flatten()[:30_001].contiguous(), source)
    same_numbers(
        octofold.ops.convert_dtype(vector, target), octofold.ops.convert_dtype(vector.cpu(), target)
    )


@pytest.mark.parametrize("source", ["bfloat16", "float16", "e4m3", "e5m2"])
def test_converts_all_bit_patterns(source):
    dtype = DTYPES[source]
    count = 256**dtype.itemsize
    patterns = torch.arange(count, dtype=torch.int32, device=DEVICE)
    x = patterns.to(torch.int16 if dtype.itemsize == 2 else torch.uint8).view(dtype)
    for target, overflow in itertools.product(DTYPES, OVERFLOWS):
        actual = octofold.ops.convert_dtype(x, target, overflow=overflow)
        same_numbers(actual, octofold.ops.convert_dtype(x.cpu(), target, overflow=overflow))


@every_granularity
@pytest.mark.parametrize("target", SOURCES)
def test_dequantizes(granularity, target, generator):
    for (rows, cols), dtype in itertools.product(((256, 512), (133, 301), (0, 5)), FORMATS):
        cast = octofold.quantize(normal(generator, rows, cols), octofold.Format(dtype, granularity))
        on_cpu = octofold.ScaledTensor(cast.data.cpu(), cast.scale.cpu(), granularity)
        same_numbers(cast.dequantize(target), on_cpu.dequantize(target))
