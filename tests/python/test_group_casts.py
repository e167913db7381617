"""Casts of rows in groups and of gathered rows: those of each group alone, and of the rows in
memory."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from octofold import Depth, ScaledTensor
from octofold.ops import Activated, ActivationGradient, Gathered, Target, scale_shape

from tests.cases.shapes import PARTITIONS
from tests.python.casting import GRANULARITIES, cast_side, formats
from tests.python.devices import cast, on_gpu, quantize
from tests.python.reference import offsets_of

pytestmark = pytest.mark.usefixtures("each_device")

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16)
BLOCKS = ("1x128", "128x128")


def places(offsets, spaces=1):
    """For each group that has rows: its rows, and its first column in the K-group layout."""
    for group, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin < end:
            yield slice(begin, end), 128 * (begin // 128 + spaces * group)


def assert_groups(grouped, offsets, cast_of, spaces=1):
    """Asserts the casts that cast_of(rows of a group) gives, with zeros behind each."""
    codes = grouped.data.view(np.uint8)
    for rows, column in places(offsets, spaces):
        expected = cast_of(rows)
        count = rows.stop - rows.start
        units = -(-count // 128)
        np.testing.assert_array_equal(
            codes[:, column : column + count], expected.data.view(np.uint8)
        )
        assert not codes[:, column + count : column + 128 * units].any()
        if expected.granularity in BLOCKS:
            first = column // 128
            np.testing.assert_array_equal(grouped.scale[:, first : first + units], expected.scale)


def assert_rows(cast, count, expected):
    """The first rows are those of a cast of them alone."""
    assert cast.granularity == expected.granularity
    np.testing.assert_array_equal(
        cast.data.view(np.uint8)[:count], expected.data.view(np.uint8)[:count]
    )
    np.testing.assert_array_equal(cast.scale[:count], expected.scale[:count])


def partitions(rng):
    """Sizes of groups, rows behind them, and columns; some that are others in each run."""
    yield from PARTITIONS
    for cols in (128, 200):
        sizes = rng.choice([0, 0, 1, 3, 17, 127, 128, 129, 200, 256], rng.integers(1, 7))
        yield tuple(sizes.tolist()), int(rng.integers(0, 130)), cols


def spread_out(rng, rows, cols, source):
    """Units of very different magnitude, rows of zeros, some infinity, in memory of longer rows."""
    padding = int(rng.integers(0, 4))
    x = rng.normal(0, 1, (rows, cols + padding)) * np.exp2(rng.uniform(-15, 10, (rows, 1)))
    x[:: max(rows // 5, 1)] = 0
    x[rng.random(x.shape) > 0.9995] = np.inf
    return x.astype(source)[:, :cols]


@pytest.mark.parametrize("transposed", BLOCKS)
@pytest.mark.parametrize("rule", ["deepgemm", "vllm", "vllm-per-token", "te", "deepseek"])
@pytest.mark.parametrize("source", SOURCES)
def test_any_partition_is_casts_of_each_group(source, rule, transposed, rng):
    for sizes, behind, cols in partitions(rng):
        x = spread_out(rng, sum(sizes) + behind, cols, source)
        check_partition(x, offsets_of(sizes), behind, rule, transposed)


def check_partition(x, offsets, behind, rule, transposed):
    total, cols = int(offsets[-1]), x.shape[1]
    of_transpose = f"{transposed} {rule}"
    rows, groups, *_ = cast(x, rows=rule, transposed=of_transpose, offsets=offsets)
    assert groups.shape == (cols, 128 * ((total + behind) // 128 + len(offsets) - 1))
    assert_rows(rows, total, quantize(x[:total], rule))

    def cast_of(rows):
        return cast_side(x[rows], of_transpose, transpose=True)

    assert_groups(groups, offsets, cast_of)
    assert_groups(cast_side(x, of_transpose, True, offsets=offsets), offsets, cast_of)
    tight = np.append(offsets[offsets % 128 == 0], offsets[:1] + total // 128 * 128)
    tight.sort()
    groups = cast(x, transposed=of_transpose, offsets=Depth(tight, "tight")).transposed
    assert groups.shape == (cols, (total + behind) // 128 * 128)
    assert_groups(groups, tight, cast_of, spaces=0)


def poisoned(rows, cols, granularity="1x128"):
    """Codes and scales that nobody has written: no cast of finite values writes NaN."""
    scale = np.full(scale_shape(granularity, rows, cols), -1, np.float32)
    codes = np.full((rows, cols), 0x7F, np.uint8).view(ml_dtypes.float8_e4m3fn)
    return ScaledTensor(codes, scale, granularity)


def test_nothing_else_is_written(rng):
    x, offsets = rng.normal(0, 1, (300, 200)).astype(np.float32), offsets_of([5, 0, 135, 130])
    of_rows, of_groups = poisoned(300, 200), poisoned(200, 128 * (300 // 128 + 4))
    targets = (Target("1x128", out=out) for out in (of_rows, of_groups))
    cast(x, **dict(zip(("rows", "transposed"), targets, strict=True)), offsets=offsets)
    is_poison = of_rows.data.view(np.uint8) == 0x7F
    assert is_poison.all(1).tolist() == is_poison.any(1).tolist() == [False] * 270 + [True] * 30
    assert (of_rows.scale[270:] == -1).all()
    slots = [False, True, False, False, False, False]  # of 128 columns: the empty group's
    last = of_groups.data.view(np.uint8)[:, 127::128] == 0x7F
    assert last.all(0).tolist() == last.any(0).tolist() == slots
    assert (of_groups.scale == -1).all(0).tolist() == slots
    # Again, by its scales.
    of_groups.scale[:, 1] = 1
    given = cast_side(x, "1x128", True, offsets=offsets, scale=of_groups.scale)
    written = [slot for slot in range(6) if slot != 1]
    codes = (part.data.view(np.uint8).reshape(200, 6, 128) for part in (given, of_groups))
    left, right = (part[:, written] for part in codes)
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_scales_for_all_groups(granularity, rng):
    offsets = offsets_of([5, 0, 140, 128, 3])
    x = rng.normal(0, 1, (300, 200)).astype(np.float32)
    x[276:] = 1e6  # of no group
    rows, groups, *_ = cast(x, **formats(granularity, "both"), offsets=offsets)
    count = 1 if granularity == "tensor" else 276
    expected = quantize(x[:276], granularity)
    np.testing.assert_array_equal(rows.scale[:count], expected.scale)
    np.testing.assert_array_equal(rows.data.view(np.uint8)[:276], expected.data.view(np.uint8))
    whole = cast_side(x[:276], granularity, transpose=True)
    np.testing.assert_array_equal(groups.scale, whole.scale)
    codes = whole.data.view(np.uint8)
    for rows, column in places(offsets):
        count = rows.stop - rows.start
        np.testing.assert_array_equal(
            groups.data.view(np.uint8)[:, column : column + count], codes[:, rows]
        )


def test_any_pair_of_granularities(rng):
    """From one read or from two, where rows have scales that are of one group alone."""
    offsets = offsets_of([3, 0, 128, 66])
    x = rng.normal(0, 1, (197, 160)).astype(np.float32)
    for rows, transposed in (("channel", "1x128"), ("128x128", "1x128"), ("tensor", "128x128")):
        casts = cast(x, rows=rows, transposed=transposed, offsets=offsets)
        assert casts.rows.equals(quantize(x, rows))

        def cast_of(rows, unit=transposed):
            return cast_side(x[rows], unit, transpose=True)

        assert_groups(casts.transposed, offsets, cast_of)
    casts = cast(x, rows="torchao", transposed="channel torchao", offsets=offsets)
    assert casts.rows.equals(quantize(x, "torchao"))
    expected = cast_side(x, "channel torchao", transpose=True)
    np.testing.assert_array_equal(casts.transposed.scale, expected.scale)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("source", SOURCES)
def test_activations_and_their_gradients(source, layout, rng):
    """Groups of numbers and of codes have the casts of each group alone, though a GPU approximates
    activations."""
    some = PARTITIONS if on_gpu() else PARTITIONS[1:3]
    for (sizes, behind, cols), of_codes in itertools.product(some, (False, True)):
        offsets = offsets_of(sizes)
        x, gradient = (
            rng.normal(0, 1, (sum(sizes) + behind, width)).astype(source)
            for width in (2 * cols, cols)
        )
        kept = quantize(x) if of_codes else x
        of_type = {"dtype": x.dtype.name} if of_codes else {}

        def activated(rows, kept=kept, of_type=of_type):
            return Activated(kept[rows], layout=layout, **of_type)

        def going_back(rows, kept=kept, gradient=gradient):
            return ActivationGradient(gradient[rows], kept[rows], layout=layout)

        for make, unit in itertools.product((activated, going_back), BLOCKS):
            check_groups_of(make, offsets, unit)


def check_groups_of(make, offsets, unit):
    """make(rows): the source of these rows."""
    total = int(offsets[-1])
    whole = make(slice(None))
    casts = cast(whole, rows="1x128", transposed=unit, offsets=offsets)
    alone = cast_side(whole, unit, transpose=True, offsets=offsets)
    if total:
        assert_rows(casts.rows, total, cast_side(make(slice(0, total)), "1x128"))
    for found in (casts.transposed, alone):
        assert_groups(found, offsets, lambda rows: cast_side(make(rows), unit, transpose=True))


def gathered_rows(x, sources, slots, factors):
    """The rows as torch would make them; zeros where a row has no source."""
    rows = x.astype(np.float32)[np.maximum(sources, 0) // slots]
    if factors is not None:
        rows = rows * factors.reshape(-1)[np.maximum(sources, 0)][:, None]
    rows[sources < 0] = 0
    return rows.astype(x.dtype)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_gathered_rows_are_those_in_memory(source, multiplies, granularity, rng):
    for sizes, _, cols in partitions(rng):
        for slots in (1, 2, 6):
            check_gathered(rng, sizes, slots, cols, source, multiplies, granularity)


def check_gathered(rng, sizes, slots, cols, source, multiplies, granularity):
    tokens = int(rng.integers(1, 50))
    x = rng.normal(0, 1, (tokens, cols)).astype(source)
    factors = rng.normal(0, 1, (tokens, slots)).astype(np.float32) if multiplies else None
    offsets = offsets_of(sizes)
    count = int(offsets[-1]) + int(rng.integers(0, 3))
    sources = rng.integers(-1, tokens * slots, count).astype(np.int32)
    exist = sources >= 0
    values = gathered_rows(x, sources, slots, factors)
    given = Gathered(x, sources, slots=slots, factors=factors)

    rows, columns, *_ = cast(given, **formats(granularity, "both"))
    expected = quantize(values, granularity)
    np.testing.assert_array_equal(
        rows.data.view(np.uint8)[exist], expected.data.view(np.uint8)[exist]
    )
    by_row = granularity in ("channel", "1x128")
    np.testing.assert_array_equal(
        rows.scale[exist] if by_row else rows.scale,
        expected.scale[exist] if by_row else expected.scale,
    )
    assert columns.equals(cast_side(values, granularity, transpose=True))
    out = poisoned(count, cols, granularity)
    alone = cast_side(given, granularity, out=out)
    assert (out.data.view(np.uint8)[~exist] == 0x7F).all()
    if by_row:
        assert (out.scale[~exist] == -1).all()
    np.testing.assert_array_equal(alone.data.view(np.uint8)[exist], rows.data.view(np.uint8)[exist])

    if granularity in BLOCKS:
        groups = cast_side(given, granularity, transpose=True, offsets=offsets)
        assert_groups(
            groups, offsets, lambda rows: cast_side(values[rows], granularity, transpose=True)
        )


def test_gathered_rows_that_no_block_holds(rng):
    x, factors = rng.normal(0, 1, (9, 100_000)), rng.normal(0, 1, (9, 2)).astype(np.float32)
    x, sources = x.astype(ml_dtypes.bfloat16), rng.integers(-1, 18, 21).astype(np.int32)
    given = Gathered(x, sources, slots=2, factors=factors)
    values, exist = gathered_rows(x, sources, 2, factors), sources >= 0
    by_row = "channel vllm-per-token"
    rows, expected = cast_side(given, by_row), quantize(values, by_row)
    np.testing.assert_array_equal(rows.scale[exist], expected.scale[exist])
    both, squares = cast(given, **formats("128x128", "both")), quantize(values, "128x128")
    np.testing.assert_array_equal(both.rows.scale, squares.scale)
    for found, wanted in ((rows, expected), (both.rows, squares)):
        codes = (each.data.view(np.uint8)[exist] for each in (found, wanted))
        np.testing.assert_array_equal(*codes)
    assert both.transposed.equals(cast_side(values, "128x128", transpose=True))


@pytest.mark.parametrize("rows", [None, *GRANULARITIES])
@pytest.mark.parametrize("transposed", GRANULARITIES)
def test_factors_of_the_transpose(rows, transposed, rng):
    """The casts are those of two calls: of rows, and of the transpose times factors."""
    if rows not in (None, transposed) and (rows != "1x128" or transposed == "tensor"):
        pytest.skip("cast() has no such pair")
    x = rng.normal(0, 1, (40, 200)).astype(ml_dtypes.bfloat16)
    factors = rng.normal(0, 1, (40, 3)).astype(np.float32)
    sources = rng.integers(-1, 120, 150).astype(np.int32)
    sources[140:] = -1
    plain, times = (Gathered(x, sources, slots=3, factors=each) for each in (None, factors))
    given = Gathered(x, sources, slots=3, transposed_factors=factors)
    for offsets in (None, offsets_of([5, 0, 135])):
        if offsets is not None and rows == "128x128":
            continue
        casts = cast(given, rows=rows, transposed=transposed, offsets=offsets)
        alone = cast(times, transposed=transposed, offsets=offsets).transposed
        written = np.ones(casts.transposed.shape[1], bool)
        if offsets is not None:
            written[:] = False
            for part, column in places(offsets):
                written[column : column + part.stop - part.start] = True
        codes = (each.data.view(np.uint8)[:, written] for each in (casts.transposed, alone))
        np.testing.assert_array_equal(*codes)
        if offsets is None:
            assert casts.transposed.equals(alone)
        if rows is not None:
            exist = sources >= 0
            wanted = cast(plain, rows=rows).rows
            for left, right in ((casts.rows.data, wanted.data), (casts.rows.scale, wanted.scale)):
                each = exist if len(left) == len(exist) else slice(None)
                np.testing.assert_array_equal(left[each].view(np.uint8), right[each].view(np.uint8))
    assert cast(given, rows="1x128").rows.shape == (150, 200)
