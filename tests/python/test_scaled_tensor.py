"""ScaledTensor as a citizen: compared, sliced, transposed, moved, pickled."""

import numpy as np
import octofold
import pytest
import tvm_ffi

from tests.python import reference


def matrix(rng, *shape):
    return rng.normal(0, 1, shape or (300, 260)).astype(np.float32)


@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
def test_equals_by_value(granularity, rng):
    x = matrix(rng)
    cast = octofold.quantize(x, granularity)
    assert cast.equals(octofold.quantize(x.copy(), granularity))
    assert cast != octofold.quantize(x, granularity)  # == is identity
    assert not cast.equals(octofold.quantize(x * 2, granularity))  # other scales
    assert not cast.equals(octofold.quantize(x, octofold.Format("e5m2", granularity)))
    assert not cast.equals(octofold.quantize(x[:299], granularity))
    other = cast.data.copy()
    other.view(np.uint8)[17, 3] ^= 1
    assert not cast.equals(octofold.ScaledTensor(other, cast.scale, granularity))
    assert not cast.equals(cast.data)


def test_equality_of_granularities_frameworks_and_nan(rng):
    x = matrix(rng, 1, 128)
    channel, whole = (octofold.quantize(x, name) for name in ("channel", "tensor"))
    assert np.array_equal(channel.scale, whole.scale)
    assert not channel.equals(whole)
    x[0, 3] = np.nan
    assert octofold.quantize(x).equals(octofold.quantize(x))
    tensors = [octofold.quantize(tvm_ffi.from_dlpack(x)) for _ in range(2)]
    assert tensors[0].equals(tensors[1])
    assert not tensors[0].equals(octofold.quantize(tvm_ffi.from_dlpack(x[:, :5])))


@pytest.mark.parametrize("granularity", reference.GRANULARITIES)
@pytest.mark.parametrize("rows", [slice(128, 256), slice(None), slice(256, None), slice(-44, None)])
def test_slices_of_rows(granularity, rows, rng):
    cast = octofold.quantize(matrix(rng), granularity)
    part = cast[rows]
    assert np.shares_memory(part.data, cast.data)
    np.testing.assert_array_equal(part.dequantize(), cast.dequantize()[rows])


def test_slices_with_leading_dimensions(rng):
    x = matrix(rng, 4, 64, 260)
    for granularity in reference.GRANULARITIES:
        cast = octofold.quantize(x, granularity)
        np.testing.assert_array_equal(cast[2:4].dequantize(), cast.dequantize()[2:4])
    with pytest.raises(octofold.InvalidArgumentError, match="got 1:4 of 64 rows each"):
        octofold.quantize(x, "128x128")[1:]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (slice(100, 256), r"multiples of 128, .* \(here 0 or 128\), or to the end, got 100:256"),
        (slice(128, 290), r"\(here 256 or 384\), or to the end, got 128:290"),
        (slice(0, 256, 2), r"a slice of step 1 or a whole number, got slice\(0, 256, 2\)"),
        ("5", "a slice of step 1 or a whole number, got '5'"),
        (5, "a slice, because a row alone is no matrix, got 5"),
    ],
)
def test_slices_that_cut_scales(rows, message, rng):
    cast = octofold.quantize(matrix(rng), "128x128")
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        cast[rows]


@pytest.mark.parametrize("granularity", ["tensor", "128x128"])
def test_rows_of_a_stack_are_dequantized_by_matrix(granularity, rng):
    x = matrix(rng, 300, 140)
    stack = octofold.quantize(x, granularity, matrices=3)
    alone = [octofold.quantize(one, granularity) for one in np.split(x, 3)]
    expected = np.concatenate([one.dequantize() for one in alone])
    np.testing.assert_array_equal(stack.dequantize(), expected)
    wrong = octofold.ScaledTensor(stack.data[:299], stack.scale, granularity)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'x\.scale': expected shape"):
        wrong.dequantize()


@pytest.mark.parametrize("granularity", ["64x64", None])
def test_no_slices_of_unknown_granularities(granularity, rng):
    cast = octofold.quantize(matrix(rng))
    unknown = octofold.ScaledTensor(cast.data, cast.scale, granularity)
    message = f"'granularity': expected one of tensor, .* 128x128, got {granularity!r}"
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        unknown[:128]


@pytest.mark.parametrize("granularity", ["tensor", "128x128"])
def test_transpose(granularity, rng):
    x = matrix(rng)
    transpose = octofold.quantize(x, granularity).T
    assert transpose.shape == (260, 300)
    copy = octofold.ScaledTensor(
        np.ascontiguousarray(transpose.data), transpose.scale, transpose.granularity
    )
    assert copy.equals(octofold.ops.cast(x, transposed=granularity).transposed)
    assert transpose.T.equals(octofold.quantize(x, granularity))
    with pytest.raises(octofold.InvalidArgumentError, match="'x': expected contiguous columns"):
        transpose.dequantize()


@pytest.mark.parametrize("granularity", ["channel", "1x128"])
def test_scales_of_rows_have_no_transpose(granularity, rng):
    cast = octofold.quantize(matrix(rng), granularity)
    with pytest.raises(octofold.InvalidArgumentError, match=f"ops.cast.*, got {granularity}"):
        _ = cast.T


def test_stays_on_the_cpu(rng):
    cast = octofold.quantize(matrix(rng))
    assert cast.to("cpu") is cast
    with pytest.raises(octofold.InvalidArgumentError, match=r"'device': expected 'cpu', .*'cuda'"):
        cast.to("cuda")


def test_describes_itself_whatever_it_holds():
    cast = octofold.quantize(np.ones((3, 300), np.float32), "e5m2")
    assert repr(cast) == (
        "ScaledTensor(data=float8_e5m2 [3, 300], scale=float32 [3, 3], granularity='1x128')"
    )
    assert "scale=None" in repr(octofold.ScaledTensor(cast.data, None, "1x128"))
