"""Casts of stacks of matrices: those of each matrix alone, byte for byte."""

import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest
from octofold import InvalidArgumentError, Rows, ScaledTensor, ops
from octofold.ops import Target

from tests.cases.shapes import STACKS
from tests.python.casting import GRANULARITIES, cast_side
from tests.python.devices import cast, cpu_only, quantize

pytestmark = pytest.mark.usefixtures("each_device")

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)


def assert_each_alone(stack, alone):
    assert stack.shape[0] == stack.scale.shape[0] == len(alone)
    for index, expected in enumerate(alone):
        np.testing.assert_array_equal(
            stack.data[index].view(np.uint8), expected.data.view(np.uint8)
        )
        scale = np.reshape(stack.scale[index], expected.scale.shape)
        np.testing.assert_array_equal(scale, expected.scale)


KINDS = (*((unit, unit) for unit in GRANULARITIES), ("1x128", "channel"), ("1x128", "128x128"))
RULES = ("deepgemm", "vllm", "te", "torchao", "deepseek", "compressed-tensors")


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("source", SOURCES)
def test_any_stack_is_casts_of_each_matrix(source, kind, rng):
    """In memory of longer rows, that begins anywhere; special values in the last matrix."""
    for rule, dtype in zip(RULES, ("e4m3", "e5m2") * 3, strict=True):
        sizes = rng.choice([1, 2, 77, 127, 128, 129, 200, 256], 2)
        for matrices, rows, cols in (*STACKS, (int(rng.integers(1, 5)), *map(int, sizes))):
            padding, first = (int(rng.integers(0, 4)) for _ in range(2))
            memory = rng.normal(0, 1, (matrices, rows, first + cols + padding))
            memory *= np.exp2(rng.integers(-8, 8, (matrices, 1, 1)))
            x = memory.astype(source)[:, :, first : first + cols]
            if matrices > 1 and rows * cols > 4:
                x[-1, 0, 0], x[-1, -1, -1], x[0, rows // 2] = np.inf, np.nan, -0.0
            check_stack(x, *(f"{dtype} {unit} {rule}" for unit in kind))


def check_stack(x, rows, of_transpose):
    matrices, _, cols = x.shape
    each = [cast(matrix, rows=rows, transposed=of_transpose)[:2] for matrix in x]
    both = cast(x, rows=rows, transposed=of_transpose, matrices=matrices)[:2]
    assert both[0].shape == (matrices, *x.shape[1:])
    assert both[1].shape == (matrices, cols, x.shape[1])
    for stack, alone in zip(both, zip(*each, strict=True), strict=True):
        assert_each_alone(stack, alone)
    assert quantize(x, rows, matrices=matrices).equals(both[0])
    assert cast_side(x, of_transpose, True, matrices=matrices).equals(both[1])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_given_scales(granularity, transpose, rng):
    x = rng.normal(0, 1, (3, 131, 200)).astype(np.float32)
    shape = (3, 200, 131) if transpose else x.shape
    given = rng.uniform(0.01, 1, ops.scale_shape(granularity, *shape, matrices=3))
    scale = given.astype(np.float32)
    stack = cast_side(x, granularity, transpose, scale=scale, matrices=3)
    of_one = ops.scale_shape(granularity, *shape[1:])
    each = [
        cast_side(matrix, granularity, transpose, scale=one.reshape(of_one))
        for matrix, one in zip(x, scale, strict=True)
    ]
    assert_each_alone(stack, each)


def poisoned(shape, granularity):
    """Codes and scales that nobody has written."""
    data = np.full(shape, 0x7F, np.uint8).view(ml_dtypes.float8_e4m3fn)
    scale = np.full(ops.scale_shape(granularity, *shape, matrices=shape[0]), -7, np.float32)
    return ScaledTensor(data, scale, granularity)


USED = ((0, 4, 4, 5, 5, 5), (0,) * 6, (0, 0, 0, 0, 0, 1), (0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize("transposes", [False, True], ids=["rows", "both"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_only_matrices_that_are_used(granularity, transposes, rng):
    for (rows, cols), offsets in itertools.product(((136, 272), (131, 77), (8, 5000)), USED):
        x = rng.normal(0, 1, (5, rows, cols)).astype(ml_dtypes.bfloat16)
        outs = {"rows": poisoned(x.shape, granularity)}
        if transposes:
            outs["transposed"] = poisoned((5, cols, rows), granularity)
        targets = {side: Target(granularity, out=out) for side, out in outs.items()}
        cast(x, **targets, matrices=Rows(np.array(offsets, np.int32)))
        expected = cast(x, rows=granularity, transposed=granularity, matrices=5)
        for side, some in outs.items():
            untouched = poisoned(some.shape, granularity)
            for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
                source = getattr(expected, side) if begin < end else untouched
                assert some[index].equals(source[index])


def test_into_out_and_from_any_leading_dimensions(rng):
    x = rng.normal(0, 1, (6, 50, 200)).astype(np.float32)
    for granularity in GRANULARITIES:
        expected = cast_side(x.reshape(2, 150, 200), granularity, True, matrices=2)
        data = np.zeros((2, 200, 150), ml_dtypes.float8_e4m3fn)
        scale = np.zeros_like(expected.scale)
        out = ScaledTensor(data, scale, granularity)
        assert cast_side(x, granularity, True, out=out, matrices=2) is out
        assert out.equals(expected)
        rows = quantize(x, granularity, matrices=2)
        assert rows.shape == x.shape
        stack = quantize(x.reshape(2, 150, 200), granularity, matrices=2)
        np.testing.assert_array_equal(rows.scale.flatten(), stack.scale.flatten())


def test_shapes_of_scales():
    assert ops.scale_shape("tensor", 3, 130, 200, matrices=3) == (3,)
    assert ops.scale_shape("channel", 3, 130, 200, matrices=3) == (3, 130)
    assert ops.scale_shape("1x128", 3, 130, 200, matrices=3) == (3, 130, 2)
    assert ops.scale_shape("128x128", 3, 130, 200, matrices=3) == (3, 2, 2)
    assert ops.scale_shape("128x128", 3, 130, 200) == (4, 2)


@cpu_only
@pytest.mark.parametrize("rows", [128, 150])
@pytest.mark.parametrize(("leading", "matrices"), [((3,), 3), ((6,), 2), ((2, 3), 6), ((1,), 1)])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_parts_have_the_values_of_the_whole(granularity, leading, matrices, rows, rng):
    """Parts are whole matrices, and a part of one; or the error says which parts there are."""
    x = rng.normal(0, 1, (*leading, rows, 200)).astype(np.float32)
    x *= np.exp2(rng.integers(-5, 5, (leading[0], *[1] * len(x.shape[1:]))))
    stack = quantize(x, granularity, matrices=matrices)
    values = stack.dequantize()
    np.testing.assert_allclose(values, x, rtol=0, atol=np.abs(x).max() / 16)
    assert pickle.loads(pickle.dumps(stack)).equals(stack)
    with pytest.raises(IndexError, match=f"{leading[0]} of {leading[0]}"):
        stack[leading[0]]
    for part in (-1, *range(leading[0]), slice(0, 1), slice(1, None), slice(0, 3), slice(0, 0)):
        if leading == (6,) and not can_be_cut(granularity, rows, part):
            with pytest.raises(InvalidArgumentError, match="'rows': expected a slice"):
                stack[part]
        else:
            np.testing.assert_array_equal(stack[part].dequantize(), values[part])


def can_be_cut(granularity, rows, part):
    """True if a stack of two matrices, each of three times so many rows, has this part."""
    if granularity in ("channel", "1x128") or part in (slice(0, 3), slice(0, 0)):
        return True
    return part != slice(1, None) and (granularity == "tensor" or rows == 128)
