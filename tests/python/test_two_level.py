"""Two-level scales: a factor for each channel, and 128x128 scales of the data divided by it."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from octofold import Format, InvalidArgumentError, ScaledTensor, gemm, ops
from octofold.ops import Target

from tests.python import judge
from tests.python.casting import GRANULARITIES, cast_side
from tests.python.devices import cast, cpu_only, dequantize, quantize

pytestmark = pytest.mark.usefixtures("each_device")

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
RULES = ("deepgemm", "vllm-per-token", "te", "torchao", "compressed-tensors")
SHAPE = (130, 300)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def factors_of(rng, channels):
    return np.exp(2 * rng.standard_normal(channels)).astype(np.float32)


def operand(rng, rows, cols, granularity, two_level=False):
    """Codes and scales at random, without a cast."""
    codes = (32 * rng.standard_normal((rows, cols))).astype(ml_dtypes.float8_e4m3fn)
    shape = ops.scale_shape(granularity, rows, cols)
    scale = np.exp2(rng.uniform(-8, -4, shape)).astype(np.float32)
    factors = factors_of(rng, rows) if two_level else None
    return ScaledTensor(codes, scale, granularity, factors)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("source", SOURCES)
def test_cast_is_that_of_the_quotients(source, rule, rng):
    """The casts are those of FP32 products with the factors' reciprocals, byte for byte: of rows,
    of the transpose, of both, and beside rows of 1x128."""
    x = (10 * rng.standard_normal(SHAPE)).astype(source)
    x[3, :5] = 0, -0.0, np.inf, 1e-42, 464
    of_rows, of_columns = factors_of(rng, SHAPE[0]), factors_of(rng, SHAPE[1])
    lines, squares = f"e5m2 {rule}", f"e5m2 128x128 {rule}"
    wide = x.astype(np.float32)
    rows = quantize(wide * (np.float32(1) / of_rows)[:, None], squares)
    columns = cast_side(wide * (np.float32(1) / of_columns), squares, transpose=True)

    def check(cast, expected, factors):
        assert cast.channel_scale is factors
        assert ScaledTensor(cast.data, cast.scale, cast.granularity).equals(expected)

    check(cast_side(x, squares, channel_scale=of_rows), rows, of_rows)
    check(cast_side(x, squares, True, channel_scale=of_columns), columns, of_columns)
    of_transpose = Target(squares, channel_scale=of_columns)
    both = cast(x, rows=Target(squares, channel_scale=of_rows), transposed=of_transpose)
    check(both.rows, rows, of_rows)
    check(both.transposed, columns, of_columns)
    for format in (lines, squares, f"e5m2 channel {rule}"):
        beside = cast(x, rows=format, transposed=of_transpose)
        assert beside.rows.equals(quantize(x, format))
        check(beside.transposed, columns, of_columns)


@pytest.mark.parametrize("rows", ["1x128", "128x128", None])
def test_beside_the_magnitudes_of_columns(rows, rng):
    """The magnitudes are those of x itself, not of the quotients: the factors of a next step."""
    x = rng.standard_normal(SHAPE).astype(ml_dtypes.bfloat16)
    squares = Target("128x128 torchao", channel_scale=factors_of(rng, SHAPE[1]))
    format = None if rows is None else f"{rows} torchao"
    casts = cast(x, rows=format, transposed=squares, columns="amax")
    assert casts.transposed.equals(cast(x, transposed=squares).transposed)
    assert casts.rows is None if rows is None else casts.rows.equals(quantize(x, format))
    assert np.array_equal(casts.amax, np.abs(x.astype(np.float32)).max(axis=0))


def test_factors_that_are_none_count_as_one(rng):
    x = rng.standard_normal((12, 140)).astype(np.float32)
    smallest = np.finfo(np.float32).smallest_normal
    largest = np.finfo(np.float32).max
    bad = np.array([0, -0.0, -1, np.nan, np.inf, -np.inf, 1e-42], np.float32)
    factors = np.concatenate([bad, np.array([1, 0.5, 3, smallest, largest], np.float32)])
    used = np.concatenate([np.ones_like(bad), factors[len(bad) :]])
    x[10] *= smallest
    x[11] *= largest / 8
    cast, expected = (
        cast_side(x, "128x128 torchao", channel_scale=given) for given in (factors, used)
    )
    assert np.array_equal(cast.data.view(np.uint8), expected.data.view(np.uint8))
    assert np.array_equal(cast.scale, expected.scale)
    assert np.array_equal(cast.dequantize(), expected.dequantize())
    a = operand(rng, 5, 140, "1x128")
    out = gemm(a, cast, out_dtype="float32")
    assert np.array_equal(out, gemm(a, expected, out_dtype="float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dequantizes(dtype, rng):
    x = operand(rng, *SHAPE, "128x128", two_level=True)
    scale = np.repeat(np.repeat(x.scale, 128, 0), 128, 1)[: SHAPE[0], : SHAPE[1]]
    expected = x.data.astype(np.float32) * scale * x.channel_scale[:, None]
    actual = dequantize(x, dtype)
    assert np.array_equal(actual, expected.astype(actual.dtype))


@cpu_only
@pytest.mark.parametrize("a_granularity", GRANULARITIES)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("addends", ["none", "c and bias", "in place"])
def test_products_against_float64(a_granularity, out_dtype, addends, rng):
    m, n, k = 140, 270, 300
    a = operand(rng, m, k, a_granularity)
    b = operand(rng, n, k, "128x128", two_level=True)
    plain = ScaledTensor(b.data, b.scale, b.granularity)
    left = a.dequantize().astype(np.float64)
    right = plain.dequantize().astype(np.float64) * b.channel_scale[:, None].astype(np.float64)
    value, terms = left @ right.T, np.abs(left) @ np.abs(right).T
    c = bias = out = None
    if addends != "none":
        c = (10 * rng.standard_normal((m, n))).astype(np.float32)
        bias = (10 * rng.standard_normal(n)).astype(np.float32)
        value, terms = value + c + bias, terms + np.abs(c) + np.abs(bias)
    if addends == "in place":
        if out_dtype != "float32":
            pytest.skip("c is of out's dtype there")
        out = c
    d = gemm(a, b, c=c, bias=bias, out_dtype=None if out is not None else out_dtype, out=out)
    judge.assert_close(d.astype(np.float64), value, terms, out_dtype, judge.ACCUMULATION)


def relative(error, expected):
    """Overall, and of the worst column in its own measure."""
    worst = np.linalg.norm(error, axis=0) / np.linalg.norm(expected, axis=0)
    return np.linalg.norm(error) / np.linalg.norm(expected), worst.max()


@cpu_only
def test_outlier_channels_of_a_weight_gradient(rng):
    """Channels e^N(0, 2), Student's t with 4 degrees of freedom: stale factors are as good as
    channel scales of the data, while plain squares lose the small channels. Codes are those of x
    alone: dY is exact."""
    tokens, features, outputs = 1024, 512, 384
    channels = np.exp(2 * rng.standard_normal(features))
    before, x = (
        (rng.standard_t(4, (tokens, features)) * channels).astype(np.float32) for _ in range(2)
    )
    dy = rng.choice([-1.0, 1.0], (tokens, outputs)).astype(np.float32)
    expected = (dy.T.astype(np.float64) @ x.astype(np.float64)) / channels
    gradient = cast(dy, transposed=Format(power_of_two=True)).transposed
    stale = np.abs(before).max(axis=0)
    errors = {}
    for name, granularity, factors in (
        ("channel", "channel", None),
        ("squares", "128x128", None),
        ("two-level", "128x128", stale),
    ):
        columns = cast_side(x, f"{granularity} torchao", transpose=True, channel_scale=factors)
        dw = gemm(gradient, columns, out_dtype="float32") / channels
        errors[name] = relative(dw - expected, expected)
    assert errors["two-level"][0] < 1.1 * errors["channel"][0] < 0.04
    assert errors["two-level"][1] < 1.3 * errors["channel"][1]
    assert errors["squares"][1] > 3 * errors["two-level"][1]


@cpu_only
def test_scaled_tensors_keep_their_factors(rng):
    x = operand(rng, 300, 140, "128x128", two_level=True)
    for twin in (pickle.loads(pickle.dumps(x)), x[:], x.to("cpu")):
        assert twin.equals(x)
        assert x.equals(twin)
    plain = ScaledTensor(x.data, x.scale, x.granularity)
    other = ScaledTensor(x.data, x.scale, x.granularity, 2 * x.channel_scale)
    for different in (plain, other):
        assert not x.equals(different)
        assert not different.equals(x)
    assert "channel_scale=float32 [300]" in repr(x)
    assert "channel_scale" not in repr(plain)
    assert np.array_equal(x[128:].dequantize(), x.dequantize()[128:])
    leading = ScaledTensor(x.data.reshape(3, 100, 140), x.scale, "128x128", x.channel_scale)
    assert np.array_equal(leading.dequantize(), x.dequantize().reshape(3, 100, 140))
    wide = operand(rng, 512, 140, "128x128", two_level=True)
    folded = ScaledTensor(wide.data.reshape(4, 128, 140), wide.scale, "128x128", wide.channel_scale)
    assert np.array_equal(folded[1:3].dequantize(), folded.dequantize()[1:3])
    with pytest.raises(InvalidArgumentError, match="'channel_scale': expected None"):
        _ = x.T


@cpu_only
def test_bad_arguments(rng):
    x = rng.standard_normal(SHAPE).astype(np.float32)
    rows, columns = factors_of(rng, SHAPE[0]), factors_of(rng, SHAPE[1])
    repeated = np.repeat(rows, 2)[::2]
    ones = np.ones((2, 3), np.float32)
    for format, options, message in (
        (
            "1x128",
            {"channel_scale": rows},
            "expected it to be omitted, except beside 128x128 scales, got one beside 1x128",
        ),
        ("128x128", {"channel_scale": columns}, r"expected shape \[130\], got \[300\]"),
        (
            "128x128",
            {"channel_scale": rows.astype(np.float16)},
            "expected dtype float32, got float16",
        ),
        ("128x128", {"channel_scale": repeated}, "expected a contiguous vector"),
        (
            "128x128",
            {"channel_scale": rows, "scale": ones},
            "expected it to be omitted beside given",
        ),
    ):
        message = "cast: argument 'rows.channel_scale': " + message
        with pytest.raises(InvalidArgumentError, match=message):
            cast_side(x, format, **options)
    for call, message in (
        (
            lambda: gemm(
                operand(rng, 5, 300, "128x128", two_level=True), operand(rng, 7, 300, "128x128")
            ),
            "gemm: argument 'a.channel_scale': expected None",
        ),
        (
            lambda: gemm(
                operand(rng, 5, 300, "1x128"),
                ScaledTensor(x, np.ones((130, 3), np.float32), "1x128", rows),
            ),
            "gemm: argument 'b'",
        ),
        (
            lambda: ops.gated_gemm(
                operand(rng, 5, 300, "1x128"), operand(rng, 8, 300, "128x128", two_level=True)
            ),
            "gated_gemm: argument 'b.channel_scale'",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
