"""Casts whose units' largest magnitudes are given: parts have the bits of the whole's cast."""

import itertools

import numpy as np
import pytest
from octofold import Format, ScaledTensor, ops, quantize
from octofold.ops import Target

from tests.cases.shapes import AMAX
from tests.python import reference
from tests.python.casting import RULE_FORMS, cast_side, every_rule
from tests.python.devices import cast, combinations, on_gpu
from tests.python.test_cast_sources import every_source, sources
from tests.python.test_quantize import assert_same_cast, matrices

pytestmark = pytest.mark.usefixtures("each_device")

SOURCES = ("float32", "float16", "bfloat16")
FORMATS, OVERFLOWS = ("e4m3", "e5m2"), ("saturate", "nan")
LONG = ("tensor", "channel")  # units as long as the matrix
both_ways = pytest.mark.parametrize("transpose", [False, True])
every_unit = pytest.mark.parametrize("granularity", LONG)
every_type = pytest.mark.parametrize("source", SOURCES)


def amax_of(x, granularity, transpose=False):
    """float32, of the units of a cast, as all ranks together find them."""
    sizes = np.abs(np.asarray(x, np.float32))
    if granularity == "tensor":
        return sizes.max(initial=0, keepdims=True).reshape(1)
    return sizes.max(axis=0 if transpose else 1, initial=0)


def parts_of(x, granularity, transpose, cut):
    """Two parts of which units have some each, and where they stand in the result."""
    if granularity == "channel" and not transpose:
        return (x[:, :cut], np.s_[:, :cut]), (x[:, cut:], np.s_[:, cut:])
    if transpose:
        return (x[:cut], np.s_[:, :cut]), (x[cut:], np.s_[:, cut:])
    return (x[:cut], np.s_[:cut]), (x[cut:], np.s_[cut:])


def check_parts(x, format, transpose, cut):
    amax = amax_of(x, format.granularity, transpose)
    whole = cast_side(x, format, transpose)
    for part, place in parts_of(x, format.granularity, transpose, cut):
        actual = cast_side(part, format, transpose, amax=amax)
        assert actual.granularity == format.granularity
        assert_same_cast(actual, whole.data[place].view(np.uint8), whole.scale)


@every_rule
@every_unit
@both_ways
@pytest.mark.parametrize("power_of_two", [False, True, None])
def test_parts_are_those_of_the_whole(rule, granularity, transpose, power_of_two, rng):
    along = 1 if granularity == "channel" and not transpose else 0
    for source, dtype, overflow in combinations(rng, SOURCES, FORMATS, OVERFLOWS):
        format = Format(dtype, granularity, rule=rule, power_of_two=power_of_two, overflow=overflow)
        for x in matrices(rng, reference.DTYPES[source]):
            check_parts(x, format, transpose, x.shape[along] // 3)


@pytest.mark.parametrize("shape", AMAX)
@every_type
def test_any_part(shape, source, rng):
    """Cut anywhere, whatever the size of all values."""
    for rule, granularity, transpose in combinations(rng, RULE_FORMS, LONG, (False, True)):
        x = rng.normal(0, 1, shape) * np.exp2(rng.integers(-140, 120))
        with np.errstate(over="ignore"):
            x = x.astype(reference.DTYPES[source])
        along = 1 if granularity == "channel" and not transpose else 0
        format = Format(granularity=granularity, rule=rule)
        check_parts(x, format, transpose, int(rng.integers(0, x.shape[along] + 1)))


@every_rule
@every_unit
@both_ways
@every_type
def test_of_any_amax(rule, granularity, transpose, source, rng):
    """Values far beyond it, zero, infinity, NaN: the arithmetic of the rule, whatever comes of it;
    without its sign."""
    x = (rng.normal(0, 1, (9, 11)) * np.exp2(rng.integers(-20, 15, (9, 11)))).astype(
        reference.DTYPES[source]
    )
    x[0, 0], x[0, 1], x[1, 0], x[2, 2] = np.inf, -np.inf, np.nan, -0.0
    units = 1 if granularity == "tensor" else x.shape[transpose]
    for some in (0, -0.0, 1e-42, 1e-30, 1e-3, -0.7, 448, 3e38, np.inf, -np.inf, np.nan):
        amax = np.full(units, some, np.float32)
        amax[units // 2 :] *= np.float32(0.5)
        for power_of_two, overflow in combinations(rng, (False, True), OVERFLOWS):
            options = "e4m3", granularity, power_of_two, overflow, rule, transpose
            format = Format(
                granularity=granularity, rule=rule, power_of_two=power_of_two, overflow=overflow
            )
            actual = cast_side(x, format, transpose, amax=amax)
            assert_same_cast(actual, *reference.quantize(x, *options, amax=amax))


@every_rule
def test_beside_rows_of_blocks(rule, rng):
    """Both from one call of the library: rows find their own."""
    for x in matrices(rng, np.float32):
        amax = amax_of(x, "channel", True)
        whole = cast(x, rows=rule, transposed=f"channel {rule}").transposed
        for begin, end in itertools.pairwise((0, len(x) // 3, len(x))):
            casts = cast(
                x[begin:end],
                rows=rule,
                transposed=Target(f"channel {rule}", amax=amax),
                columns="both",
            )
            plain = cast(x[begin:end], rows=rule, columns="both")
            assert casts.rows.equals(plain.rows)
            np.testing.assert_array_equal(casts.sums, plain.sums)
            np.testing.assert_array_equal(casts.amax, plain.amax)
            codes = whole.data[:, begin:end].view(np.uint8)
            assert_same_cast(casts.transposed, codes, whole.scale)


@pytest.mark.parametrize("rows", ["tensor", "channel", "1x128", "128x128", None])
@pytest.mark.parametrize("transposed", ["tensor", "channel", "1x128", "128x128", None])
def test_pairs(rows, transposed, rng):
    """One call of the library writes both, or two do: each alone is the same."""
    if rows is None and transposed is None:
        return
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    targets = {}
    for side, unit, factor in (("rows", rows, 1.5), ("transposed", transposed, 1.25)):
        if unit is not None:
            amax = amax_of(x, unit, side == "transposed") * np.float32(factor)
            targets[side] = Target(f"{unit} vllm", amax=amax if unit in LONG else None)
    choices = [targets]
    for side in set(targets) - {next(iter(targets))}:  # one finds its own
        choices.append({**targets, side: targets[side].format})
    for wanted in choices:
        casts = cast(x, **wanted)
        for side, target in wanted.items():
            assert getattr(casts, side).equals(getattr(cast(x, **{side: target}), side))


@every_source
@every_unit
@both_ways
def test_every_source(name, granularity, transpose, rng):
    """The cast of the matrix in memory, whose values a GPU's own cast tells where it approximates
    them."""
    source, values = sources(rng)[name]
    format = f"{granularity} torchao"
    if on_gpu() and name.startswith("Activ"):
        columns = cast(source, rows="torchao", columns="amax").amax
        amax = columns.max(keepdims=True) if granularity == "tensor" else columns
        if granularity == "channel" and not transpose:
            pytest.skip("no cast tells the largest magnitudes of rows")
        expected = cast_side(source, format, transpose)
        rows = cast_side(source, "1x128 torchao")
    else:
        amax = 2 * amax_of(values, granularity, transpose)
        matrix = np.ascontiguousarray(values.T) if transpose else values
        expected = cast_side(matrix, format, amax=amax)
        rows = quantize(values, "1x128 torchao")
    assert cast_side(source, format, transpose, amax=amax).equals(expected)
    if not transpose:
        return
    casts = cast(source, rows="1x128 torchao", transposed=Target(format, amax=amax))
    assert casts.transposed.equals(expected)
    assert casts.rows.equals(rows)
    if granularity == "tensor":
        target = Target(format, amax=amax)
        both = cast(source, rows=target, transposed=target)
        assert both.transposed.equals(expected)
        assert both.rows.equals(cast_side(source, format, amax=amax))


@every_unit
def test_groups(granularity, rng):
    x = rng.normal(0, 1, (140, 60)).astype(np.float32)
    offsets = np.array([0, 5, 5, 131], np.int32)
    amax = 3 * amax_of(x, granularity, True)
    target = Target(f"{granularity} te", amax=amax)
    rows = "1x128 te" if granularity == "channel" else Target("tensor te", amax=amax)
    casts = cast(x, rows=rows, transposed=target, offsets=offsets)
    expected = cast(x, rows=rows, transposed=target)
    np.testing.assert_array_equal(casts.transposed.scale, expected.transposed.scale)
    assert casts.rows[:131].equals(expected.rows[:131])
    for begin, end, column in ((0, 5, 0), (5, 131, 256)):
        codes = casts.transposed.data[:, column : column + end - begin]
        assert codes.tobytes() == expected.transposed.data[:, begin:end].tobytes()


@every_unit
@both_ways
def test_stacks(granularity, transpose, rng):
    x = rng.normal(0, 1, (3, 40, 60)).astype(np.float32)
    amax = np.stack([2 * amax_of(one, granularity, transpose) for one in x])
    given = amax.reshape(3) if granularity == "tensor" else amax
    stack = cast_side(x, granularity, transpose, amax=given, matrices=3)
    assert stack.scale.shape == given.shape
    for i, one in enumerate(x):
        expected = cast_side(one, granularity, transpose, amax=amax[i])
        assert stack.data[i].tobytes() == expected.data.tobytes()
        np.testing.assert_array_equal(stack.scale[i], expected.scale.reshape(stack.scale[i].shape))


@every_unit
@both_ways
def test_writes_into_out(granularity, transpose, rng):
    x = rng.normal(0, 1, (130, 300)).astype(np.float32)
    amax = 2 * amax_of(x, granularity, transpose)
    kept = amax.copy()
    expected = cast_side(x, granularity, transpose, amax=amax)
    out = ScaledTensor(np.zeros_like(expected.data), np.zeros_like(expected.scale), granularity)
    assert cast_side(x, granularity, transpose, amax=amax, out=out) is out
    assert out.equals(expected)
    np.testing.assert_array_equal(amax, kept)


def test_any_strides_and_leading_dimensions(rng):
    x = rng.normal(0, 1, (4, 30, 50)).astype(np.float32)
    one = np.broadcast_to(np.float32(5), (120,))
    expected = cast_side(x, "channel", amax=one.copy())
    for amax in (one, np.full((120, 3), 5, np.float32)[:, 1], np.full((4, 30), 5, np.float32)):
        assert cast_side(x, "channel", amax=amax).equals(expected)
    for empty in (x[0, :0], x[0, :, :0], x[0, :0, :0]):
        for side, columns in (("rows", 0), ("transposed", 1)):
            amax = np.full(empty.shape[columns], 3, np.float32)
            for target in (Target("channel", amax=amax), Target("tensor", amax=one[:1])):
                actual, expected = (call(empty, **{side: target}) for call in (cast, ops.cast))
                assert getattr(actual, side).equals(getattr(expected, side))
