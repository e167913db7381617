"""Casts of activations and of their gradients, against FP64."""

import itertools

import ml_dtypes
import numpy as np
import octofold
import pytest
from octofold.ops import Activated, ActivationGradient

from tests.cases import shapes
from tests.python import reference
from tests.python import reference_activations as formulas
from tests.python.casting import GRANULARITIES, cast_side, formats, sides_of
from tests.python.devices import cast, combinations, on_gpu

pytestmark = pytest.mark.usefixtures("each_device")

ROWS, COLS = shapes.ACTIVATIONS[0]
LAYOUTS = ("halves", "interleaved")
WIDE = ("bfloat16", "float16", "float32")
CASES = [
    (name, layout)
    for name, layout in itertools.product(formulas.ACTIVATIONS, LAYOUTS)
    if layout == "halves" or name in formulas.GATED
]
every_case = pytest.mark.parametrize(("activation", "layout"), CASES)
HALF_STEP = {"e4m3": (1 / 16, 2.0**-10), "e5m2": (1 / 8, 2.0**-17)}  # relative, of subnormals


def sizes(activation):
    if not on_gpu():
        return shapes.ACTIVATIONS
    wide = shapes.WIDE_ACTIVATIONS if activation == "swiglu" else ()
    return shapes.ACTIVATIONS + shapes.ACTIVATIONS_ON_GPU + wide


def inputs(rng, activation, dtype="bfloat16", rows=ROWS, cols=COLS):
    """x and a gradient, of rows of very different magnitude."""
    magnitude = np.exp2(rng.uniform(-3, 3, (rows, 1)))
    x = magnitude * rng.normal(0, 1, (rows, 2 * cols if activation in formulas.GATED else cols))
    dtype = reference.DTYPES[dtype]
    return x.astype(dtype), rng.normal(0, 1, (rows, cols)).astype(dtype)


def sources(x, gradient, activation="swiglu", layout="halves"):
    """Both sources of casts, and their values in FP64."""
    value = formulas.activation(x, activation, layout)
    slope = formulas.activation_gradient(gradient, x, activation, layout)
    return (
        (Activated(x, activation, layout=layout), value),
        (ActivationGradient(gradient, x, activation, layout=layout), slope),
    )


def assert_cast_of(actual, values, source, format, transpose):
    """The cast of these values, rounded to the source's dtype. A GPU approximates them: each may be
    away by half a step of both roundings, and each scale belongs to the largest of them."""
    rounded = values.astype(np.float32).astype(source)
    expected = cast_side(rounded, format, transpose)
    if not on_gpu():
        assert actual.equals(expected)
        return
    values = values.T if transpose else values
    of_source, (relative, absolute) = ml_dtypes.finfo(source), HALF_STEP[format.dtype]
    rounding = max(2 * float(of_source.eps), 1e-5)  # the GPU approximates to some 1e-6
    ones = np.ones(actual.shape, np.float32)
    scales = reference.dequantize(ones, actual.scale, format.granularity)
    bound = np.maximum(relative * abs(values), absolute * scales)
    error = abs(reference.dequantize(actual.data, actual.scale, format.granularity) - values)
    least = float(of_source.smallest_normal) * float(of_source.eps)
    rounded = rounding * abs(values) + least
    rounded += 1e-6 * abs(values).max()  # of terms that cancel, as where a slope is 0
    assert (error <= (1 + rounding) * bound + rounded).all()
    of_scales = 1e-6 * expected.scale.max()  # a block may have nothing but such terms
    np.testing.assert_allclose(actual.scale, expected.scale, rtol=2 * rounding, atol=of_scales)


@every_case
def test_are_those_of_the_formulas(activation, layout, rng):
    """Rows and transposes from one read, and each alone."""
    kinds = combinations(rng, GRANULARITIES, ("e4m3", "e5m2"), ("bfloat16", "float32", "float16"))
    if not on_gpu():
        kinds = list(itertools.product(GRANULARITIES, ("e4m3", "e5m2"), ("bfloat16",)))
    for (rows, cols), (granularity, dtype, source) in itertools.product(sizes(activation), kinds):
        x, gradient = inputs(rng, activation, source, rows, cols)
        format = octofold.Format(dtype, granularity)
        for made, values in sources(x, gradient, activation, layout):
            both = cast(made, rows=format, transposed=format)
            for one, transpose in sides_of(both):
                assert_cast_of(one, values, x.dtype, format, transpose)
                assert cast_side(made, format, transpose).equals(one)


@every_case
def test_from_fp8_are_those_of_what_it_stands_for(activation, layout, rng):
    """x of every granularity, rounded to every type, in memory of longer rows; each target."""
    kinds = list(itertools.product(GRANULARITIES, WIDE))
    if on_gpu() and activation != "swiglu":
        kinds = combinations(rng, GRANULARITIES, WIDE)
    formats_in_turn = itertools.cycle(GRANULARITIES[::-1])
    paddings = itertools.cycle((0, 16, 1, 4, 8))
    for (rows, cols), (of_x, wide) in itertools.product(sizes(activation), kinds):
        x, gradient = inputs(rng, activation, wide, rows, cols)
        codes = octofold.quantize(x, f"{'e5m2' if wide == 'float16' else 'e4m3'} {of_x}")
        values = codes.dequantize(wide)
        memory = np.zeros((rows, x.shape[1] + next(paddings)), codes.data.dtype)
        memory[:, : x.shape[1]] = codes.data
        codes = octofold.ScaledTensor(memory[:, : x.shape[1]], codes.scale, of_x)
        unit, kind = next(formats_in_turn), {"activation": activation, "layout": layout}
        for source, expected in (
            (Activated(codes, **kind, dtype=wide), Activated(values, **kind)),
            (
                ActivationGradient(gradient, codes, **kind),
                ActivationGradient(gradient, values, **kind),
            ),
        ):
            both, other = (cast(s, **formats(unit, "both")) for s in (source, expected))
            for (one, transpose), (wanted, _) in zip(sides_of(both), sides_of(other), strict=True):
                assert one.equals(wanted)
                assert cast_side(source, unit, transpose).equals(wanted)


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
            found, wanted = (cast_side(each, granularity) for each in (actual, expected))
            np.testing.assert_array_equal(found.data.view(np.uint8), wanted.data.view(np.uint8))
            np.testing.assert_array_equal(found.scale, wanted.scale)
    activated = cast_side(Activated(codes, layout=layout), "tensor")
    assert np.isnan(activated.data[0, 5 if layout == "halves" else 2].astype(np.float32))


def test_no_rows():
    empty = cast_side(Activated(np.zeros((0, 256), np.float32)), "1x128")
    assert empty.shape == (0, 128)


def test_fp8_is_rounded_to_bfloat16_if_nothing_is_said(rng):
    codes = octofold.quantize(inputs(rng, "swiglu", "float32")[0])
    expected = cast_side(Activated(codes, dtype="bfloat16"), "1x128")
    assert cast_side(Activated(codes), "1x128").equals(expected)
    assert not cast_side(Activated(codes, dtype="float32"), "1x128").equals(expected)
