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
