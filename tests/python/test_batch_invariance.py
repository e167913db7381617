"""Rows of a result that do not depend on the rows beside them."""

import os
import subprocess
import sys

import numpy as np
import octofold
import pytest
from octofold.ops import gated_gemm

SIZES = 1, 2, 7, 16, 33, 128, 129, 300
PAIRS = [("1x128", "128x128"), ("1x128", "1x128"), ("channel", "channel"), ("tensor", "128x128")]


def numbers(rng, *shape):
    """Numbers of magnitudes so different that the order of a sum shows."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape))
    return values.astype(np.float32)


def rows_of(operand, rows):
    """The same rows, anywhere, with the scales that they have."""
    scale = operand.scale if operand.granularity == "tensor" else operand.scale[rows]
    return octofold.ScaledTensor(operand.data[rows], scale, operand.granularity)


@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_gemm(rng, of_a, of_b):
    a = octofold.quantize(numbers(rng, 300, 515), of_a)
    b = octofold.quantize(numbers(rng, 140, 515), of_b)
    c = numbers(rng, 300, 140)
    options = {"out_dtype": "float32", "batch_invariant": True}
    whole = octofold.gemm(a, b, c=c, bias=c[0], **options)
    for count in SIZES:
        rows = rng.permutation(300)[:count]
        some = octofold.gemm(rows_of(a, rows), b, c=c[rows], bias=c[0], **options)
        np.testing.assert_array_equal(some.view(np.int32), whole[rows].view(np.int32))


def test_gemm_that_casts(rng):
    a, b = numbers(rng, 300, 515), octofold.quantize(numbers(rng, 140, 515), "128x128")
    whole = octofold.gemm(a, b, out_dtype="float32", batch_invariant=True)
    for count in SIZES:
        rows = rng.permutation(300)[:count]
        some = octofold.gemm(a[rows], b, out_dtype="float32", batch_invariant=True)
        np.testing.assert_array_equal(some, whole[rows])


def test_what_stands_in_other_rows_does_not_matter(rng):
    b = octofold.quantize(numbers(rng, 140, 515), "128x128")
    x = numbers(rng, 40, 515)
    clean = octofold.gemm(octofold.quantize(x), b, out_dtype="float32", batch_invariant=True)
    x[:7], x[8:] = np.inf, np.nan
    dirty = octofold.gemm(octofold.quantize(x), b, out_dtype="float32", batch_invariant=True)
    np.testing.assert_array_equal(dirty[7], clean[7])


@pytest.mark.parametrize("kind", ["rows", "masked"])
def test_groups(rng, kind):
    """A row of a group, with the others of all groups, and with none."""
    counts = [0, 1, 130, 29]
    a = octofold.quantize(numbers(rng, 4, 130, 515).reshape(520, 515))
    w = numbers(rng, 4, 128, 515)
    b = octofold.quantize(w, "128x128")

    def product(numbers_of_rows):
        options = {"out_dtype": "float32", "batch_invariant": True}
        if kind == "masked":
            masked = octofold.Masked(np.array(numbers_of_rows, np.int32))
            of_groups = octofold.ScaledTensor(a.data.reshape(4, 130, 515), a.scale, "1x128")
            return octofold.grouped_gemm(of_groups, b, masked, **options)
        places = np.concatenate(
            [130 * group + np.arange(count) for group, count in enumerate(numbers_of_rows)]
        ).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(numbers_of_rows)]).astype(np.int32)
        rows = octofold.grouped_gemm(rows_of(a, places), b, octofold.Rows(offsets), **options)
        result = np.zeros((520, 128), np.float32)
        result[places] = rows
        return result.reshape(4, 130, 128)

    many, few = product(counts), product([min(count, 1) for count in counts])
    for group, count in enumerate(counts):
        if count:
            np.testing.assert_array_equal(few[group, 0], many[group, 0])


def test_gated_gemm(rng):
    """Its sums are gemm()'s; codes seldom show in which order they were made."""
    a = octofold.quantize(numbers(rng, 300, 391))
    b = octofold.quantize(numbers(rng, 256, 391), "128x128")
    whole = gated_gemm(a, b, batch_invariant=True)
    for count in SIZES:
        rows = rng.permutation(300)[:count]
        some = gated_gemm(rows_of(a, rows), b, batch_invariant=True)
        np.testing.assert_array_equal(some.data.view(np.uint8), whole.data[rows].view(np.uint8))
        np.testing.assert_array_equal(some.scale, whole.scale[rows])


def test_the_switch_is_for_all_calls(rng):
    a = octofold.quantize(numbers(rng, 300, 515))
    b = octofold.quantize(numbers(rng, 140, 515), "128x128")
    one = octofold.gemm(rows_of(a, [7]), b, out_dtype="float32", batch_invariant=True)
    assert octofold.is_batch_invariant() is False
    octofold.set_batch_invariant(True)
    try:
        assert octofold.is_batch_invariant() is True
        whole = octofold.gemm(a, b, out_dtype="float32")
    finally:
        octofold.set_batch_invariant(False)
    assert octofold.is_batch_invariant() is False
    np.testing.assert_array_equal(whole[7], one[0])


def test_the_switch_wants_a_bool():
    with pytest.raises(octofold.InvalidArgumentError, match="'enabled': expected True or False"):
        octofold.set_batch_invariant(1)


def test_the_environment_switches_it_on():
    script = "import octofold; print(octofold.is_batch_invariant())"
    environment = {**os.environ, "OCTOFOLD_BATCH_INVARIANT": "1"}
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, env=environment, text=True) == "True\n"
