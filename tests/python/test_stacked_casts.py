"""Casts of stacks of matrices: those of each matrix alone, byte for byte."""

import ml_dtypes
import numpy as np
import octofold
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
GRANULARITIES = ("tensor", "channel", "1x128", "128x128")


def assert_each_alone(stack, alone):
    assert stack.shape[0] == stack.scale.shape[0] == len(alone)
    for index, expected in enumerate(alone):
        np.testing.assert_array_equal(
            stack.data[index].view(np.uint8), expected.data.view(np.uint8)
        )
        scale = np.reshape(stack.scale[index], expected.scale.shape)
        np.testing.assert_array_equal(scale, expected.scale)


sizes = st.sampled_from([0, 1, 2, 77, 127, 128, 129, 200, 256])


@settings(deadline=None)
@given(
    st.integers(1, 4),
    sizes,
    sizes,
    st.sampled_from(SOURCES),
    st.sampled_from(GRANULARITIES),
    st.sampled_from([None, "channel", "128x128"]),
    st.sampled_from(["deepgemm", "vllm", "te", "torchao", "deepseek"]),
    st.sampled_from(["e4m3", "e5m2"]),
    st.integers(0, 2**32 - 1),
)
def test_any_stack_is_casts_of_each_matrix(
    matrices, rows, cols, source, granularity, transposed, profile, dtype, seed
):
    rng = np.random.default_rng(seed)
    padding = int(rng.integers(0, 3))
    exponents = np.exp2(rng.integers(-8, 8, (matrices, 1, 1)))
    memory = rng.normal(0, 1, (matrices, rows, cols + padding)) * exponents
    x = memory.astype(source)[:, :, :cols]
    options = {"dtype": dtype, "granularity": granularity, "profile": profile}
    if granularity == "1x128":
        options["transposed_granularity"] = transposed
    each = [octofold.quantize_both(matrix, **options) for matrix in x]
    both = octofold.quantize_both(x, **options, matrices=matrices)
    assert both[0].shape == (matrices, rows, cols)
    assert both[1].shape == (matrices, cols, rows)
    for stack, alone in zip(both, zip(*each, strict=True), strict=True):
        assert_each_alone(stack, alone)
    other = options.pop("transposed_granularity", None) or granularity
    of_rows = octofold.quantize(x, **options, matrices=matrices)
    assert of_rows.equals(both[0])
    of_transpose = octofold.quantize(
        x, **{**options, "granularity": other}, transpose=True, matrices=matrices
    )
    assert of_transpose.equals(both[1])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_given_scales(granularity, transpose, rng):
    x = rng.normal(0, 1, (3, 131, 200)).astype(np.float32)
    shape = (3, 200, 131) if transpose else x.shape
    given = rng.uniform(0.01, 1, octofold.scale_shape(granularity, *shape, matrices=3))
    scale = given.astype(np.float32)
    options = {"granularity": granularity, "transpose": transpose}
    stack = octofold.quantize(x, scale=scale, matrices=3, **options)
    of_one = octofold.scale_shape(granularity, *shape[1:])
    each = [
        octofold.quantize(matrix, scale=one.reshape(of_one), **options)
        for matrix, one in zip(x, scale, strict=True)
    ]
    assert_each_alone(stack, each)


def test_two_level_scales(rng):
    x = rng.normal(0, 1, (3, 131, 200)).astype(np.float32)
    of_rows, of_columns = (
        np.exp(rng.normal(0, 2, (3, count))).astype(np.float32) for count in (131, 200)
    )
    for granularity, with_rows in (("128x128", True), ("1x128", False)):
        options = {"granularity": granularity, "transposed_granularity": "128x128"}

        def factors(rows, columns, with_rows=with_rows):
            return {
                "channel_scale": rows if with_rows else None,
                "transposed_channel_scale": columns,
            }

        both = octofold.quantize_both(
            x, **options, **factors(of_rows.flatten(), of_columns.flatten()), matrices=3
        )
        each = [
            octofold.quantize_both(x[i], **options, **factors(of_rows[i], of_columns[i]))
            for i in range(3)
        ]
        for stack, alone in zip(both, zip(*each, strict=True), strict=True):
            assert_each_alone(stack, alone)


def test_into_out_and_from_any_leading_dimensions(rng):
    x = rng.normal(0, 1, (6, 50, 200)).astype(np.float32)
    for granularity in GRANULARITIES:
        expected = octofold.quantize(
            x.reshape(2, 150, 200), granularity=granularity, transpose=True, matrices=2
        )
        data = np.zeros((2, 200, 150), ml_dtypes.float8_e4m3fn)
        scale = np.zeros_like(expected.scale)
        out = octofold.ScaledTensor(data, scale, granularity)
        assert octofold.quantize(x, transpose=True, matrices=2, out=out) is out
        assert out.equals(expected)
        rows = octofold.quantize(x, granularity=granularity, matrices=2)
        assert rows.shape == x.shape
        stack = octofold.quantize(x.reshape(2, 150, 200), granularity=granularity, matrices=2)
        np.testing.assert_array_equal(rows.scale.flatten(), stack.scale.flatten())


@pytest.mark.parametrize("rows", [128, 150])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_slices_are_stacks(granularity, rows, rng):
    x = rng.normal(0, 1, (4, rows, 200)).astype(np.float32)
    x *= np.exp2(np.arange(4, dtype=np.float32))[:, None, None]
    stack = octofold.quantize(x, granularity=granularity, matrices=4)
    part = octofold.quantize(x[1:3], granularity=granularity, matrices=2)
    assert stack[1:3].equals(part)


@pytest.mark.slow
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_compiled_with_any_sizes(granularity):
    torch = pytest.importorskip("torch")

    def cast(x):
        rows, transposed = octofold.quantize_both(x, granularity=granularity, matrices=3)
        alone = octofold.quantize(x, granularity=granularity, transpose=True, matrices=3)
        return rows.data, rows.scale, transposed.data, transposed.scale, alone.data

    compiled = torch.compile(cast, backend="eager", fullgraph=True, dynamic=True)
    for shape in ((3, 130, 200), (3, 40, 64)):
        x = torch.randn(shape)
        for left, right in zip(compiled(x), cast(x), strict=True):
            assert left.shape == right.shape
            assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def test_shapes_of_scales():
    assert octofold.scale_shape("tensor", 3, 130, 200, matrices=3) == (3,)
    assert octofold.scale_shape("channel", 3, 130, 200, matrices=3) == (3, 130)
    assert octofold.scale_shape("1x128", 3, 130, 200, matrices=3) == (3, 130, 2)
    assert octofold.scale_shape("128x128", 3, 130, 200, matrices=3) == (3, 2, 2)
    assert octofold.scale_shape("128x128", 3, 130, 200) == (4, 2)


X = np.zeros((3, 130, 200), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: octofold.quantize(X, matrices=4),
            "quantize: argument 'matrices': expected a number from 1 on that divides 390 rows, "
            "got 4",
        ),
        (
            lambda: octofold.quantize_both(X, matrices=0),
            "quantize_both: argument 'matrices': expected a number from 1 on .*, got 0",
        ),
        (
            lambda: octofold.quantize(X, matrices="3"),
            "'matrices': expected a whole number or None, got '3'",
        ),
        (
            lambda: octofold.scale_shape("tensor", 5, 5, matrices=2),
            "scale_shape: argument 'matrices': expected a number from 1 on that divides 5 rows",
        ),
        (
            lambda: octofold.quantize_both(X, matrices=3, offsets=np.array([0, 390], np.int32)),
            "'offsets': expected none beside 'matrices'",
        ),
        (
            lambda: octofold.quantize(
                X, granularity="128x128", matrices=3, scale=np.ones((4, 2), np.float32)
            ),
            r"'scale': expected shape \[3, 2, 2\], got \[4, 2\]",
        ),
        (
            lambda: octofold.quantize(
                X, granularity="tensor", matrices=3, scale=np.ones(1, np.float32)
            ),
            r"'scale': expected shape \[3\], got \[1\]",
        ),
        (
            lambda: octofold.quantize(
                X,
                matrices=3,
                transpose=True,
                out=octofold.quantize(X, transpose=True),
            ),
            r"'out': expected shape \[3, 200, 130\], got \[200, 390\]",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(octofold.InvalidArgumentError, match=message):
        call()
