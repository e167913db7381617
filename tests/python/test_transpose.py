"""Transposes of FP8 codes: the bytes that NumPy and torch give, in memory of their own."""

import numpy as np
import octofold
import pytest
from octofold.ops import transpose

from tests.python import reference


def codes_of(rng, dtype, *shape):
    return rng.integers(0, 256, shape, np.uint8).view(reference.DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (130, 70), (64, 128), (3, 65, 31), (2, 3, 16, 5), (0, 4), (4, 0), (0, 2, 3)]
)
def test_of_matrices_and_stacks(rng, dtype, shape):
    x = codes_of(rng, dtype, *shape)
    out = transpose(x)
    assert out.dtype == x.dtype
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8).swapaxes(-2, -1))


def test_of_slices(rng):
    x = codes_of(rng, "e4m3", 3, 70, 90)
    for view in (x[:, :, 5:60], x[1:], x[:, 69:]):
        expected = view.view(np.uint8).swapaxes(-2, -1)
        np.testing.assert_array_equal(transpose(view).view(np.uint8), expected)


def test_a_scaled_tensor_has_the_scales_for_it(rng):
    x = rng.standard_normal((130, 260)).astype(np.float32)
    x8 = octofold.quantize(x, "128x128")
    transposed = octofold.ScaledTensor(transpose(x8.data), x8.T.scale, "128x128")
    assert transposed.equals(octofold.ops.cast(x, transposed="128x128").transposed)


def test_what_has_no_transpose(rng):
    for x, message in (
        (np.ones((2, 3), np.float32), "argument 'x': expected one of e4m3, e5m2"),
        (codes_of(rng, "e4m3", 3), "argument 'x': expected a matrix"),
        (codes_of(rng, "e4m3", 3, 4)[:, ::2], "argument 'x': expected contiguous columns"),
        (codes_of(rng, "e4m3", 2, 3, 4)[:, :2], "argument 'x': expected leading dimensions"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=f"transpose: {message}"):
            transpose(x)


def test_compiles_whole():
    torch = pytest.importorskip("torch")
    x = torch.randint(0, 256, (3, 20, 36), dtype=torch.uint8).view(torch.float8_e4m3fn)
    compiled = torch.compile(transpose, fullgraph=True, backend="aot_eager")
    expected = x.view(torch.uint8).mT
    assert torch.equal(compiled(x).view(torch.uint8), expected)
    assert compiled(x).is_contiguous()
    meta = transpose(torch.empty(3, 20, 36, dtype=torch.float8_e5m2, device="meta"))
    assert (meta.shape, meta.dtype) == ((3, 36, 20), torch.float8_e5m2)
