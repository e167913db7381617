"""Casts of activations and of their gradients, against FP64."""

import itertools

import ml_dtypes
import numpy as np
import octofold
import pytest
from octofold.ops import Activated, ActivationGradient, cast

from tests.python import reference_activations as reference
from tests.python.casting import GRANULARITIES, cast_side, formats

ROWS, COLS = 131, 200
LAYOUTS = ("halves", "interleaved")
CASES = [
    (name, layout)
    for name, layout in itertools.product(reference.ACTIVATIONS, LAYOUTS)
    if layout == "halves" or name in reference.GATED
]
every_case = pytest.mark.parametrize(("activation", "layout"), CASES)


def inputs(rng, activation, dtype=ml_dtypes.bfloat16):
    """x and a gradient, of rows of very different magnitude."""
    magnitude = np.exp2(rng.uniform(-3, 3, (ROWS, 1)))
    cols = 2 * COLS if activation in reference.GATED else COLS
    x = magnitude * rng.normal(0, 1, (ROWS, cols))
    return x.astype(dtype), rng.normal(0, 1, (ROWS, COLS)).astype(dtype)


@every_case
def test_is_the_cast_of_the_activation(activation, layout, rng):
    x, _ = inputs(rng, activation)
    values = reference.activation(x, activation, layout).astype(np.float32).astype(x.dtype)
    for granularity, dtype in itertools.product(GRANULARITIES, ("e4m3", "e5m2")):
        format = f"{dtype} {granularity}"
        casts = cast(Activated(x, activation, layout=layout), rows=format, transposed=format)
        assert casts.rows.equals(octofold.quantize(values, format))
        assert casts.transposed.equals(cast_side(values, format, transpose=True))


@every_case
def test_gradient_is_that_of_the_activation(activation, layout, rng):
    x, gradient = inputs(rng, activation)
    expected = reference.activation_gradient(gradient, x, activation, layout)
    values = expected.astype(np.float32).astype(x.dtype)
    source = ActivationGradient(gradient, x, activation, layout=layout)
    for granularity in GRANULARITIES:
        assert cast_side(source, granularity).equals(octofold.quantize(values, granularity))
    transposed = cast_side(source, "1x128", transpose=True)
    assert transposed.equals(cast_side(values, "1x128", transpose=True))


def test_formats_are_those_of_quantize(rng):
    x, _ = inputs(rng, "swiglu", np.float32)
    values = reference.activation(x, "swiglu", "halves").astype(np.float32)
    format = octofold.Format(rule="vllm", power_of_two=True, overflow="nan")
    assert cast_side(Activated(x), format).equals(octofold.quantize(values, format))


def test_leading_dimensions_and_strides(rng):
    x, gradient = inputs(rng, "swiglu")
    flat = cast_side(Activated(x[:130]), "1x128")
    leading = cast_side(Activated(x[:130].reshape(2, 65, -1)), "1x128")
    assert leading.shape == (2, 65, COLS)
    assert np.array_equal(leading.data.reshape(130, COLS).view("u1"), flat.data.view("u1"))
    codes = octofold.quantize(x[:130].reshape(2, 65, -1))
    assert codes.scale.shape == (2, 65, 4)
    of_codes = cast_side(ActivationGradient(gradient[:130].reshape(2, 65, -1), codes), "1x128")
    flat = cast_side(ActivationGradient(gradient[:130], octofold.quantize(x[:130])), "1x128")
    assert of_codes.shape == (2, 65, 2 * COLS)
    assert np.array_equal(of_codes.data.reshape(130, -1).view("u1"), flat.data.view("u1"))
    back = cast_side(ActivationGradient(gradient[::2], x[::2]), "1x128")
    contiguous = cast_side(ActivationGradient(gradient[::2].copy(), x[::2].copy()), "1x128")
    assert back.equals(contiguous)


def test_nan_and_infinity_are_handed_on():
    x = np.zeros((1, 256), np.float32)
    x[0, 0], x[0, 1], x[0, 2] = np.nan, np.inf, -np.inf
    x[0, 128:] = 1
    values = cast_side(Activated(x, "silu"), "1x128").dequantize()
    assert np.isnan(values[0, :128]).any()
    assert np.isfinite(values[0, 128:]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_in_fp8_is_handed_on(layout, rng):
    x, gradient = inputs(rng, "swiglu")
    codes = octofold.quantize(x)
    codes.data.view(np.uint8)[0, 5] = 0x7F
    codes.scale[0, 3] = np.nan
    values = codes.dequantize("bfloat16")
    for actual, expected in (
        (Activated(codes, layout=layout), Activated(values, layout=layout)),
        (
            ActivationGradient(gradient, codes, layout=layout),
            ActivationGradient(gradient, values, layout=layout),
        ),
    ):
        for granularity in GRANULARITIES:
            assert cast_side(actual, granularity).equals(cast_side(expected, granularity))
    activated = cast_side(Activated(codes, layout=layout), "tensor")
    assert np.isnan(activated.data[0, 5 if layout == "halves" else 2].astype(np.float32))


def test_no_rows():
    empty = cast_side(Activated(np.zeros((0, 256), np.float32)), "1x128")
    assert empty.shape == (0, 128)


@every_case
def test_from_fp8_are_those_of_what_it_stands_for(activation, layout, rng):
    """Every granularity of x, every type that its values are rounded to."""
    for granularity, wide in itertools.product(GRANULARITIES, ("bfloat16", "float16", "float32")):
        dtype = np.dtype(getattr(ml_dtypes, wide, wide))
        x, gradient = inputs(rng, activation, dtype)
        codes = octofold.quantize(x, f"{'e5m2' if wide == 'float16' else 'e4m3'} {granularity}")
        values = codes.dequantize(wide)
        kind = {"activation": activation, "layout": layout}
        for source, expected in (
            (Activated(codes, **kind, dtype=wide), Activated(values, **kind)),
            (
                ActivationGradient(gradient, codes, **kind),
                ActivationGradient(gradient, values, **kind),
            ),
        ):
            actual, other = (cast(s, **formats("128x128", "both")) for s in (source, expected))
            assert actual.rows.equals(other.rows)
            assert actual.transposed.equals(other.transposed)


def test_fp8_is_rounded_to_bfloat16_if_nothing_is_said(rng):
    codes = octofold.quantize(inputs(rng, "swiglu", np.float32)[0])
    expected = cast_side(Activated(codes, dtype="bfloat16"), "1x128")
    assert cast_side(Activated(codes), "1x128").equals(expected)
    assert not cast_side(Activated(codes, dtype="float32"), "1x128").equals(expected)


def fp8(rows, cols, scale_cols=1, granularity="1x128", dtype=ml_dtypes.float8_e4m3fn):
    scale = np.ones((rows, scale_cols), np.float32)
    return octofold.ScaledTensor(np.zeros((rows, cols), dtype), scale, granularity)


X = np.zeros((4, 8), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X, "activation": "tanh"}, "activation 'tanh' is not one of: swiglu"),
        ({"x": X, "layout": "thirds"}, "gate layout 'thirds' is not one of: halves"),
        ({"x": X[:, :7]}, "argument 'x': expected an even last dimension"),
        ({"x": X[0]}, "argument 'x'"),
        ({"x": X.astype(np.int32)}, "argument 'x'"),
        ({"x": X, "dtype": "float32"}, "'source.dtype': expected None"),
        ({"x": fp8(4, 8, 2)}, "argument 'x.scale': expected shape [4, 1] for granularity 1x128"),
        ({"x": fp8(4, 8, granularity="64")}, "granularity '64' is not one of"),
        ({"x": fp8(4, 8, dtype=np.float32)}, "argument 'x': expected dtype e4m3 or e5m2"),
        ({"x": fp8(4, 7)}, "argument 'x': expected an even last dimension"),
        ({"x": fp8(4, 8), "dtype": "e4m3"}, "'source.dtype': expected one of float32, float16"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(octofold.InvalidArgumentError) as error:
        cast(Activated(**arguments), rows="1x128")
    assert message in str(error.value)


CODES = X[:, :4].astype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize(
    ("x", "gradient", "message"),
    [
        (X, X, "argument 'gradient': expected shape [4, 4]"),
        (X, X[:, :4].astype(np.float16), "argument 'gradient': expected dtype float32"),
        (fp8(4, 8), X, "argument 'gradient': expected shape [4, 4]"),
        (fp8(4, 8), CODES, "argument 'gradient': expected dtype float32"),
    ],
)
def test_gradient_has_to_fit(x, gradient, message):
    with pytest.raises(octofold.InvalidArgumentError) as error:
        cast_side(ActivationGradient(gradient, x), "1x128")
    assert message in str(error.value)


def test_two_level_scales_are_refused():
    codes = fp8(4, 8)
    x = octofold.ScaledTensor(codes.data, codes.scale[:1], "128x128", np.ones(4, np.float32))
    for source in (Activated(x), ActivationGradient(X[:, :4], x)):
        with pytest.raises(
            octofold.InvalidArgumentError, match=r"x\.channel_scale': expected None"
        ):
            cast_side(source, "1x128")
