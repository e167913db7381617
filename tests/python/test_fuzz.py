"""Random arguments give the right result or a clean error, never anything else. Where too few are
accepted the tests fail: they would show little."""

import math

import numpy as np
import octofold
from hypothesis import given
from hypothesis import strategies as st

from tests.python import reference
from tests.python.casting import cast_side

FLOATS = [reference.DTYPES[name] for name in ("float32", "float16", "bfloat16")]
DTYPES = [
    *3 * FLOATS,
    *reference.DTYPES.values(),
    *map(np.dtype, ("f8", "i4", "u1", ">f4", "?", "O")),
]
SIZES = st.sampled_from([0, 1, 2, 3, 127, 128, 129, 260])


@st.composite
def arrays(draw, dtypes=DTYPES, ranks=(0, 1, *[2] * 8, 3, 5)):
    """Views of all kinds: stepped, reversed, transposed, broadcast, read-only, unaligned."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(SIZES, min_size=(rank := draw(st.sampled_from(ranks))), max_size=rank))
    if np.prod(shape, dtype=float) > 1e5:
        shape = [min(size, 3) for size in shape]
    seed = draw(st.integers(0, 2**32 - 1))
    array = np.random.default_rng(seed).normal(0, 1, shape)
    array = reference.quietly_cast(np.asarray(array, np.float32), dtype)
    change = draw(st.sampled_from(["none"] * 4 + ["slice", "reverse", "T", "broadcast", "shift"]))
    if change == "slice":
        steps = st.sampled_from([slice(None), slice(1, None), slice(None, None, 2)])
        array = array[(..., *(draw(steps) for _ in shape))]
    elif change == "reverse":
        array = array[(..., *(slice(None, None, -1) for _ in shape[:1]))]
    elif change == "T":
        array = array.T
    elif change == "broadcast" and 0 not in shape:
        array = np.broadcast_to(array[:1], array.shape) if rank else array
    elif change == "shift" and not dtype.hasobject:
        memory = np.empty(array.nbytes + 1, np.uint8)
        memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
        array = memory[1:].view(dtype).reshape(array.shape)
    if draw(st.booleans()) and array.ndim:
        array.flags.writeable = False
    return array


names = st.sampled_from
granularities = names([*3 * reference.GRANULARITIES, "128x1"])
overflows = names([*["saturate", "nan"] * 3, "wrap"])


def run(check, *strategies, least_accepted):
    """Gives random arguments to `check`, which says whether they were accepted; at least that share
    of them has to be."""
    outcomes = []

    @given(st.tuples(*strategies))
    def example(arguments):
        outcomes.append(check(*arguments))

    example()
    assert sum(outcomes) >= least_accepted * len(outcomes), f"{sum(outcomes)} of {len(outcomes)}"


def matrix(array):
    """Leading dimensions are more rows."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def quantize_is_right(x, *options):
    dtype, granularity, power_of_two, overflow, rule, transpose = options
    rounding = {"power_of_two": power_of_two, "overflow": overflow}
    try:
        cast = cast_side(x, octofold.Format(dtype, granularity, rule=rule, **rounding), transpose)
    except octofold.InvalidArgumentError:
        return False
    codes, scale = reference.quantize(matrix(x), *options)
    np.testing.assert_array_equal(cast.data.view(np.uint8).reshape(codes.shape), codes)
    np.testing.assert_array_equal(cast.scale.reshape(scale.shape), scale)
    return True


def test_quantize():
    run(
        quantize_is_right,
        arrays(),
        names([*4 * ["e4m3", "e5m2"], "bfloat16", "int8"]),
        granularities,
        names([True, False, None]),
        overflows,
        names([*3 * reference.RULES, "none"]),
        st.booleans(),
        least_accepted=0.1,
    )


def convert_is_right(x, dtype, overflow):
    try:
        out = octofold.ops.convert_dtype(x, dtype, overflow=overflow)
    except octofold.InvalidArgumentError:
        return False
    values = x.astype(np.float32)
    if dtype in reference.LARGEST:
        expected = reference.encode(values, dtype, overflow).view(reference.DTYPES[dtype])
    else:
        expected = values.astype(reference.DTYPES[dtype])
    np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))
    return True


def test_convert():
    options = names([*reference.DTYPES, "float64"]), overflows
    run(convert_is_right, arrays(), *options, least_accepted=0.1)


@st.composite
def operands(draw, cols):
    """A scaled tensor that is sound, unless its data, scale or granularity is another."""
    x = draw(arrays(FLOATS[:1], ranks=(2,)))
    x = np.resize(x, (x.shape[0], cols)) if x.size else np.ones((x.shape[0], cols), np.float32)
    granularity = draw(names(reference.GRANULARITIES))
    cast = octofold.quantize(x, octofold.Format(draw(names(["e4m3", "e5m2"])), granularity))
    parts = {"data": cast.data, "scale": cast.scale, "granularity": granularity}
    spoiled = draw(names(["nothing"] * 6 + list(parts)))
    if spoiled == "data":
        parts["data"] = draw(arrays())
    elif spoiled == "scale":
        parts["scale"] = draw(arrays([np.dtype(np.float32), np.dtype(np.float64)]))
    elif spoiled == "granularity":
        parts["granularity"] = draw(granularities)
    return octofold.ScaledTensor(**parts)


def gemm_is_right(data, cols):
    a = data.draw(operands(cols), "a")
    b = data.draw(operands(data.draw(names([cols] * 5 + [cols + 1]))), "b")
    sizes = [x.data.shape[0] if x.data.ndim else 0 for x in (a, b)]
    c = data.draw(st.none() | st.just(np.ones(sizes, np.float32)) | arrays(FLOATS), "c")
    bias = data.draw(st.none() | st.just(np.ones(sizes[1], np.float32)) | arrays(FLOATS), "bias")
    out = data.draw(st.none() | st.just(np.empty(sizes, np.float16)) | arrays(FLOATS), "out")
    try:
        result = octofold.gemm(
            a, b, c=c, bias=bias, fast_accumulation=data.draw(st.booleans(), "fast"), out=out
        )
    except octofold.InvalidArgumentError:
        return False
    with np.errstate(all="ignore"):
        left, right = (reference.dequantize(x.data, x.scale, x.granularity) for x in (a, b))
        expected = left @ right.T + (0 if c is None else c.astype(np.float64))
        expected = expected + (0 if bias is None else bias.astype(np.float64))
        finite = np.isfinite(expected) & (np.abs(expected) < 6e4)
        error = np.abs(result.astype(np.float64) - expected)[finite]
        scale = (np.abs(left) @ np.abs(right.T) + 2)[finite]
    assert result.shape == expected.shape
    assert np.all(error <= scale / 100)
    return True


def test_gemm():
    run(gemm_is_right, st.data(), SIZES, least_accepted=0.03)
