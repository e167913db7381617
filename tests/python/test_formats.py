"""Codes without scales: conversion against ml_dtypes, which has the same formats of its own make,
and transposes against NumPy."""

import numpy as np
import octofold
import pytest
from octofold import ops

from tests.cases.shapes import TRANSPOSES
from tests.python import reference
from tests.python.devices import convert_dtype, transpose

pytestmark = pytest.mark.usefixtures("each_device")

FP8 = ("e4m3", "e5m2")
WIDE = ("float32", "float16", "bfloat16")
RULES = ("saturate", "nan")


def codes_of(dtype):
    """Every value of a narrow format."""
    storage = np.uint8 if dtype in FP8 else np.uint16
    return np.arange(2 ** (8 * storage().itemsize), dtype=storage).view(reference.DTYPES[dtype])


def assert_same_values(actual, expected):
    """Bit for bit, where NaN is NaN of whichever payload."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    actual_nan, expected_nan = (np.isnan(x.astype(np.float32)) for x in (actual, expected))
    np.testing.assert_array_equal(actual_nan, expected_nan)
    bits = np.dtype(f"u{actual.dtype.itemsize}")
    np.testing.assert_array_equal(
        actual.view(bits)[~actual_nan], expected.view(bits)[~expected_nan]
    )


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("fp8", FP8)
def test_decodes_every_code(fp8, wide):
    codes = codes_of(fp8)
    expected = codes.astype(np.float32).astype(reference.DTYPES[wide])
    assert_same_values(convert_dtype(codes, wide), expected)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wide", ["float16", "bfloat16"])
@pytest.mark.parametrize("fp8", FP8)
def test_encodes_every_16_bit_value(fp8, wide, rule):
    values = codes_of(wide)
    expected = reference.encode(reference.quietly_cast(values, np.float32), fp8, rule)
    actual = convert_dtype(values, fp8, overflow=rule)
    np.testing.assert_array_equal(actual.view(np.uint8), expected)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fp8", FP8)
def test_encodes_random_float32_bit_patterns(fp8, rule, rng):
    values = rng.integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    # And as many where the format has values, which few random exponents reach.
    near = rng.normal(0, 1, 1_000_000) * np.exp2(rng.integers(-20, 18, 1_000_000))
    values = np.concatenate([values, near.astype(np.float32)])
    actual = convert_dtype(values, fp8, overflow=rule)
    np.testing.assert_array_equal(actual.view(np.uint8), reference.encode(values, fp8, rule))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fp8", FP8)
def test_encodes_ties_and_their_neighbours(fp8, rule):
    finite = np.unique(np.abs(codes_of(fp8).astype(np.float32)))
    finite = finite[np.isfinite(finite)]
    ties = np.append((finite[:-1] + finite[1:]) / 2, {"e4m3": 464, "e5m2": 61440}[fp8])
    ties = ties.astype(np.float32)
    values = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, np.float32("inf"))])
    values = np.concatenate([values, -values])
    actual = convert_dtype(values, fp8, overflow=rule)
    np.testing.assert_array_equal(actual.view(np.uint8), reference.encode(values, fp8, rule))


@pytest.mark.parametrize("wide", ["float16", "bfloat16"])
def test_rounds_float32_to_16_bits(wide, rng):
    values = rng.integers(0, 2**32, 1_000_000, np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(reference.DTYPES[wide])
    assert_same_values(convert_dtype(values, wide), expected)


@pytest.mark.parametrize("target", reference.DTYPES)
@pytest.mark.parametrize("source", reference.DTYPES)
def test_of_rows_that_begin_anywhere(source, target, rng):
    """The values that each alone has."""
    values = rng.normal(0, 1, (70, 528)) * np.exp2(rng.uniform(-140, 120, (70, 1)))
    values[rng.random(values.shape) < 0.001] = np.nan
    x = ops.convert_dtype(values.astype(np.float32), source)
    for rows, cols, first in ((70, 528, 0), (13, 301, 1), (1, 500, 3), (70, 500, 16)):
        view = x[:rows, first : first + cols]
        for rule in RULES:
            expected = ops.convert_dtype(view.copy(), target, overflow=rule)
            assert_same_values(convert_dtype(view, target, overflow=rule), expected)
    vector = x.reshape(-1)[1:30_002]
    assert_same_values(convert_dtype(vector, target), ops.convert_dtype(vector.copy(), target))


def random_codes(rng, dtype, *shape):
    return rng.integers(0, 256, shape, np.uint8).view(reference.DTYPES[dtype])


def check_transpose(x):
    out = transpose(x)
    assert out.dtype == x.dtype
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8).swapaxes(-2, -1))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_transposes_matrices_and_stacks(rng, dtype):
    for shape in TRANSPOSES:
        check_transpose(random_codes(rng, dtype, *shape))


@pytest.mark.parametrize("first", [0, 1, 5, 8, 16])
@pytest.mark.parametrize("padding", [0, 1, 16])
def test_transposes_slices(rng, first, padding):
    for shape in ((200, 304), (192, 272), (3, 144, 160), (3, 70, 55)):
        x = random_codes(rng, "e4m3", *shape[:-1], first + shape[-1] + padding)
        check_transpose(x[..., first : first + shape[-1]])
    check_transpose(x[1:])
    check_transpose(x[:, 69:])


def test_a_scaled_tensor_has_the_scales_for_it(rng):
    x = rng.standard_normal((130, 260)).astype(np.float32)
    x8 = octofold.quantize(x, "128x128")
    transposed = octofold.ScaledTensor(transpose(x8.data), x8.T.scale, "128x128")
    assert transposed.equals(octofold.ops.cast(x, transposed="128x128").transposed)
