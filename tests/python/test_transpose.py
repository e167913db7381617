"""Transposes of FP8 codes: the bytes that NumPy and torch give, in memory of their own."""

import numpy as np
import octofold
import pytest

from tests.cases.shapes import TRANSPOSES
from tests.python import reference
from tests.python.devices import cpu_only, transpose

pytestmark = pytest.mark.usefixtures("each_device")


def codes_of(rng, dtype, *shape):
    return rng.integers(0, 256, shape, np.uint8).view(reference.DTYPES[dtype])


def check(x):
    out = transpose(x)
    assert out.dtype == x.dtype
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8).swapaxes(-2, -1))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_of_matrices_and_stacks(rng, dtype):
    for shape in TRANSPOSES:
        check(codes_of(rng, dtype, *shape))


@pytest.mark.parametrize("first", [0, 1, 5, 8, 16])
@pytest.mark.parametrize("padding", [0, 1, 16])
def test_of_slices(rng, first, padding):
    for shape in ((200, 304), (192, 272), (3, 144, 160), (3, 70, 55)):
        x = codes_of(rng, "e4m3", *shape[:-1], first + shape[-1] + padding)
        check(x[..., first : first + shape[-1]])
    check(x[1:])
    check(x[:, 69:])


def test_a_scaled_tensor_has_the_scales_for_it(rng):
    x = rng.standard_normal((130, 260)).astype(np.float32)
    x8 = octofold.quantize(x, "128x128")
    transposed = octofold.ScaledTensor(transpose(x8.data), x8.T.scale, "128x128")
    assert transposed.equals(octofold.ops.cast(x, transposed="128x128").transposed)


@cpu_only
def test_what_has_no_transpose(rng):
    for x, message in (
        (np.ones((2, 3), np.float32), "argument 'x': expected one of e4m3, e5m2"),
        (codes_of(rng, "e4m3", 3), "argument 'x': expected a matrix"),
        (codes_of(rng, "e4m3", 3, 4)[:, ::2], "argument 'x': expected contiguous columns"),
        (codes_of(rng, "e4m3", 2, 3, 4)[:, :2], "argument 'x': expected leading dimensions"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=f"transpose: {message}"):
            transpose(x)
