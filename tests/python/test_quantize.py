"""Scaled casts, byte for byte against reference.py."""

import itertools

import numpy as np
import pytest
from octofold import Format, ScaledTensor, ops
from octofold._core.library import library

from tests.python import reference
from tests.python.casting import GRANULARITIES, RULES, cast_side, every_rule
from tests.python.devices import (
    cast,
    combinations,
    convert_dtype,
    cpu_only,
    dequantize,
    gpu_only,
    on_gpus,
    quantize,
)

pytestmark = pytest.mark.usefixtures("each_device")

SOURCES = ("float32", "float16", "bfloat16")
OVERFLOWS = ("saturate", "nan")


def matrices(rng, dtype):
    """Ragged matrices, and in them what casts trip over."""
    for rows, cols in ((1, 1), (3, 128), (130, 257), (129, 1)):
        yield rng.normal(0, 1, (rows, cols)).astype(dtype)
    # Units of very different magnitude, down to subnormals and up to overflow.
    wide = rng.normal(0, 1, (140, 300)) * np.exp2(rng.uniform(-150, 127, (140, 1)))
    with np.errstate(over="ignore"):
        yield wide.astype(dtype)
    special = rng.normal(0, 1, (9, 513)).astype(dtype)
    special[0] = 0
    special[1, 5], special[1, 200], special[1, 300] = np.nan, np.inf, -np.inf
    special[2, :128] = -0.0
    special[3, :200] = np.float32(1e-42)  # subnormal in float32 and bfloat16
    special[4] *= np.float32(1e-6)
    yield special
    yield np.zeros((0, 5), dtype)
    yield np.zeros((5, 0), dtype)


def assert_same_cast(actual, codes, scale):
    np.testing.assert_array_equal(actual.data.view(np.uint8), codes)
    assert actual.scale.dtype == np.float32
    # Bits, so that zeros have signs; any NaN is as good as another.
    expected_bits = np.where(np.isnan(scale), np.float32("nan"), scale).view(np.uint32)
    actual_scale = np.where(np.isnan(actual.scale), np.float32("nan"), actual.scale)
    np.testing.assert_array_equal(actual_scale.view(np.uint32), expected_bits)


@every_rule
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_matches_reference(rule, granularity, rng):
    """Rows and transposes, each alone and both from one read."""
    for source, dtype, power_of_two, overflow in combinations(
        rng, SOURCES, ("e4m3", "e5m2"), (False, True, None), OVERFLOWS
    ):
        format = Format(dtype, granularity, rule=rule, power_of_two=power_of_two, overflow=overflow)
        for x in matrices(rng, reference.DTYPES[source]):
            both = cast(x, rows=format, transposed=format)
            for transpose, one in ((False, both.rows), (True, both.transposed)):
                options = (dtype, granularity, power_of_two, overflow, rule, transpose)
                expected = reference.quantize(x, *options)
                assert one.granularity == granularity
                assert_same_cast(one, *expected)
                assert_same_cast(cast_side(x, format, transpose), *expected)
            assert quantize(x, format).equals(both.rows)


@cpu_only
def test_rules_differ():
    """So that a rule that is another's by mistake is seen."""
    x = np.random.default_rng(0).normal(0, 1, (512, 256)).astype(np.float32)
    x[:4] *= np.array([[1e-6], [1e-11], [1e-14], [0]], np.float32)  # around each rule's floor
    narrow = x.astype(np.float16)  # where some rules work in the input's type
    results = {}
    for rule in RULES:
        casts = [quantize(m, Format(rule=rule, power_of_two=False)) for m in (x, narrow)]
        results[rule] = b"".join(cast.data.tobytes() + cast.scale.tobytes() for cast in casts)
    assert len(set(results.values())) == len(results)


@every_rule
def test_transpose_by_channels_beside_rows_of_blocks(rule, rng):
    for x in matrices(rng, np.float32):
        casts = cast(x, rows=rule, transposed=f"channel {rule}")
        assert casts.rows.equals(quantize(x, rule))
        assert casts.transposed.equals(cast_side(x, f"channel {rule}", transpose=True))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("of_transpose", GRANULARITIES)
def test_any_pair_of_granularities(granularity, of_transpose, rng):
    """From one read or from two."""
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    casts = cast(x, rows=granularity, transposed=of_transpose, columns="both")
    assert casts.rows.equals(quantize(x, granularity))
    assert casts.transposed.equals(cast_side(x, of_transpose, transpose=True))
    np.testing.assert_array_equal(casts.amax, np.abs(x).max(axis=0))
    assert casts.sums.shape == (300,)


def check(x, dtype="e4m3", granularity="1x128", overflow="saturate", rule="deepgemm"):
    """Rows and transposes, each alone."""
    format = Format(dtype, granularity, rule=rule, overflow=overflow)
    for transpose in (False, True):
        options = dtype, granularity, None, overflow, rule, transpose
        assert_same_cast(cast_side(x, format, transpose), *reference.quantize(x, *options))


# Beside those of matrices(), on a GPU: tiles of each kind, and rows that no block holds.
SIZES = ((1, 128), (257, 136), *on_gpus((3, 4096), (129, 8), (1000, 24), (40, 20_000), (5, 70_001)))


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_any_size(granularity, rows, cols, rng):
    x = rng.normal(0, 1, (rows, cols)).astype(reference.DTYPES["bfloat16"])
    check(x, granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("source", SOURCES)
def test_memory_anywhere(source, granularity, rng):
    x = rng.normal(0, 1, (136, 272)) * np.exp2(rng.uniform(-12, 10, (136, 1)))
    x = x.astype(reference.DTYPES[source])
    for padding, offset in ((16, 0), (1, 0), (0, 1), (5, 3)):
        memory = np.zeros(136 * (272 + padding) + offset, x.dtype)
        view = memory[offset:].reshape(136, -1)[:, :272]
        view[...] = x
        check(view, granularity=granularity)
    check(x[::2, 16:], granularity=granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("source", ["bfloat16", "float16"])
def test_every_bit_pattern(source, granularity):
    """Also units with one magnitude each, where these are all codes' neighbourhoods and no NaN
    drowns them."""
    x = np.arange(65536, dtype=np.uint16).view(reference.DTYPES[source]).reshape(256, 256)
    for dtype, overflow in itertools.product(("e4m3", "e5m2"), OVERFLOWS):
        check(x, dtype, granularity, overflow)
        check(np.ascontiguousarray(x.T), dtype, granularity, overflow)


# Rows around what 256 threads of a GPU hold, 512, clusters of 2, 4 and 8 blocks, and more than
# that; one that is not to be copied in whole vectors.
WIDE = (16_384, 16_392, 32_768, 32_776, 40_007, 53_248, 131_072, 300_000, 500_000)


@gpu_only
@pytest.mark.parametrize("rule", ["deepgemm", "vllm-per-token"])
@pytest.mark.parametrize("source", SOURCES)
def test_wide_rows(source, rule, rng):
    dtype, format = reference.DTYPES[source], Format(granularity="channel", rule=rule)

    def check_rows(x):
        options = "e4m3", "channel", None, "saturate", rule, False
        assert_same_cast(cast_side(x, format), *reference.quantize(x, *options))

    for cols in WIDE:
        x = rng.normal(0, 1, (5, cols)) * np.exp2(rng.uniform(-14, 10, (5, 1)))
        x[2], x[3, 7], x[4, cols // 2] = 0, np.inf, np.nan
        check_rows(x.astype(dtype))
        # The largest magnitude by turns in each part of the row.
        x = rng.normal(0, 1, (8, cols))
        x[np.arange(8), np.arange(8) * cols // 8 + cols // 16] = 1000
        check_rows(x.astype(dtype))
    # Many more rows than run at one time.
    check_rows((rng.normal(0, 1, (400, 40_000)) * rng.random((400, 1))).astype(dtype))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16"])
def test_dequantizes(granularity, target, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    codes = quantize(x, granularity)
    values = dequantize(codes, target)
    # The FP64 product of a code and a scale rounds to the same FP32, and from there to `target`.
    product = reference.dequantize(codes.data, codes.scale, granularity).astype(np.float32)
    assert values.dtype == reference.DTYPES[target]
    np.testing.assert_array_equal(values, product.astype(reference.DTYPES[target]))
    assert np.abs(values.astype(np.float32) - x).max() <= np.abs(x).max() * (1 / 16 + 1 / 256)


def test_dequantizes_rows_that_are_repeated(rng):
    row = quantize(rng.normal(0, 1, (1, 300)).astype(np.float32))
    repeated = (np.broadcast_to(part, (3, part.shape[1])) for part in (row.data, row.scale))
    values = dequantize(ScaledTensor(*repeated, "1x128"))
    np.testing.assert_array_equal(values, np.repeat(row.dequantize(), 3, axis=0))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("transpose", [False, True])
def test_writes_into_out(granularity, transpose, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    format = Format("e5m2", granularity)
    expected = cast_side(x, format, transpose)
    data = np.zeros((*expected.shape[:-1], expected.shape[-1] + 5), reference.DTYPES["e5m2"])
    out = ScaledTensor(data[:, :-5], np.full(expected.scale.shape, np.nan, np.float32), granularity)
    assert cast_side(x, format, transpose, out=out) is out
    if not transpose:
        assert quantize(x, format, out=out) is out
    assert out.equals(expected)
    assert not data[:, -5:].view(np.uint8).any()


# Rules whose codes are x · (1 / scale); those of the others are x / scale.
MULTIPLIES = ("deepgemm", "deepgemm-cuda", "tilekernels", "vllm", "te", "torchao", "transformers")


@every_rule
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("transpose", [False, True])
def test_static_scales(granularity, transpose, rule, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    x[0, [5, 7, 11, 13]] = np.inf, np.nan, -0.0, 1e38
    matrix = x.T if transpose else x
    shape = ops.scale_shape(granularity, *matrix.shape)
    scale = np.exp2(rng.uniform(-12, 0, shape)).astype(np.float32)
    scale[rng.random(shape) < 0.1] *= -1
    kept = scale.copy()
    of_element = reference.dequantize(np.ones(matrix.shape), scale, granularity).astype(np.float32)
    with np.errstate(all="ignore"):
        values = matrix * (1 / of_element) if rule in MULTIPLIES else matrix / of_element
    if rule.startswith("compressed-tensors"):
        values += np.float32(0)  # 0 in place of -0
    for overflow in ("saturate", "nan"):
        format = Format(granularity=granularity, rule=rule, overflow=overflow)
        actual = cast_side(x, format, transpose, scale=scale)
        assert actual.scale is scale
        expected = reference.encode(values, "e4m3", overflow)
        np.testing.assert_array_equal(actual.data.view(np.uint8), expected)
        out = ScaledTensor(np.empty_like(actual.data), None, granularity)
        assert cast_side(x, format, transpose, scale=scale, out=out).equals(actual)
        if not transpose:
            assert quantize(x, format, scale=scale, out=out).equals(actual)
        np.testing.assert_array_equal(scale, kept)


@pytest.mark.parametrize("granularity", ["channel", "1x128"])
def test_scales_have_leading_dimensions_or_none(granularity, rng):
    x = rng.normal(0, 1, (2, 65, 300)).astype(np.float32)
    flat = quantize(x.reshape(130, 300), granularity)
    shapes = [(130,), (2, 65), (2, 65, 1)] if granularity == "channel" else [(130, 3), (2, 65, 3)]
    for shape in shapes:
        scale = np.full(shape, np.nan, np.float32)
        out = ScaledTensor(np.zeros(x.shape, flat.data.dtype), scale, granularity)
        transposed = cast(x, rows=ops.Target(granularity, out=out), transposed=granularity)[1]
        np.testing.assert_array_equal(out.data.reshape(130, 300), flat.data)
        np.testing.assert_array_equal(scale.reshape(flat.scale.shape), flat.scale)
        assert transposed.equals(cast_side(x.reshape(130, 300), granularity, True))
        np.testing.assert_array_equal(out.dequantize().reshape(130, 300), flat.dequantize())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_leading_dimensions(granularity, rng):
    x = rng.normal(0, 1, (3, 50, 300)).astype(np.float32)
    flat = quantize(x.reshape(150, 300), granularity)
    codes = quantize(x, granularity)
    assert codes.shape == x.shape
    assert codes.scale.shape == ops.scale_shape(granularity, *x.shape)
    np.testing.assert_array_equal(codes.data.reshape(150, 300), flat.data)
    np.testing.assert_array_equal(codes.scale.reshape(flat.scale.shape), flat.scale)
    values = codes.dequantize()
    np.testing.assert_array_equal(values.reshape(150, 300), flat.dequantize())
    rows, transposed, *_ = cast(x, rows=granularity, transposed=granularity)
    assert rows.equals(codes)
    expected = cast(x.reshape(150, 300), transposed=granularity).transposed
    assert transposed.equals(expected)
    assert cast(x, transposed=granularity).transposed.equals(expected)
    assert convert_dtype(x, "e4m3").shape == x.shape


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_of_any_stride(granularity, transpose, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    overlapping = np.lib.stride_tricks.as_strided(x, (129, 200), (17 * 4, 4))
    for view in (x[::-1], x[::-3], np.broadcast_to(x[7], x.shape), overlapping):
        expected = cast_side(view.copy(), granularity, transpose)
        assert cast_side(view, granularity, transpose).equals(expected)
        codes = convert_dtype(view, "e4m3")
        np.testing.assert_array_equal(
            codes.view(np.uint8), convert_dtype(view.copy(), "e4m3").view(np.uint8)
        )


@cpu_only
def test_granularities_are_those_of_the_library():
    """Python has them written down, as the library is not loaded by an import."""
    assert tuple(str(row["name"]) for row in library.granularities()) == GRANULARITIES
