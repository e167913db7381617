"""Every option of cast() with every source: the cast of the matrix that the source is."""

from dataclasses import replace

import numpy as np
import pytest
from octofold import Format
from octofold.ops import Activated, ActivationGradient, Gathered, Normed, Target

from tests.python import reference_activations
from tests.python.casting import GRANULARITIES, cast_side, sides_of
from tests.python.devices import cast

ROWS, COLS = 131, 200


def sources(rng):
    """Each with the matrix in memory, exact to the bit."""
    x = rng.normal(0, 1, (ROWS, COLS)).astype(np.float32)
    wide = rng.normal(0, 1, (ROWS, 2 * COLS)).astype(np.float32)
    activated = reference_activations.activation(wide, "swiglu", "halves")
    slope = reference_activations.activation_gradient(x, x, "relu-squared", "halves")
    places = rng.integers(0, ROWS, ROWS).astype(np.int32)
    norm = cast(Normed(x), rows="1x128").norm
    return {
        "array": (x, x),
        "Activated": (Activated(wide), activated.astype(np.float32)),
        "ActivationGradient": (ActivationGradient(x, x, "relu-squared"), slope.astype(np.float32)),
        "Normed": (Normed(x), x * norm.rstd[:, None]),
        "Gathered": (Gathered(x, places), x[places]),
    }


NAMES = ("array", "Activated", "ActivationGradient", "Normed", "Gathered")
every_source = pytest.mark.parametrize("name", NAMES)


VLLM, E5M2 = Format(rule="vllm", overflow="nan"), Format("e5m2", rule="vllm", power_of_two=True)
# The casts that are asked for: rows, transposed, columns.
KINDS = [
    (rows, transposed, columns)
    for unit in GRANULARITIES
    for rows, transposed, columns in (
        (replace(VLLM, granularity=unit), None, None),
        (None, replace(E5M2, granularity=unit), None),
        (replace(VLLM, granularity=unit), replace(VLLM, granularity=unit), None),
        (replace(E5M2, granularity=unit), None, "both"),
    )
] + [(VLLM, replace(VLLM, granularity="channel"), "both")]


@every_source
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("rows", "transposed", "columns"), KINDS, ids=map(str, range(len(KINDS))))
def test_of_every_kind(rows, transposed, columns, static, name, rng):
    source, values = sources(rng)[name]

    def target(format, shape):
        """Memory that holds something else; or scales that are given."""
        if format is None:
            return None
        out = cast_side(np.full(shape, 3, np.float32), format)
        if static:
            out.scale.flat = 0.25 + np.arange(out.scale.size) % 7
            return Target(replace(format, power_of_two=None), scale=out.scale)
        return Target(format, out=out)

    casts = [
        cast(
            x,
            rows=target(rows, (ROWS, COLS)),
            transposed=target(transposed, (COLS, ROWS)),
            columns=columns,
        )
        for x in (source, values)
    ]
    for (actual, _), (expected, _) in zip(*map(sides_of, casts), strict=True):
        assert actual.equals(expected)
    if columns:
        np.testing.assert_array_equal(casts[0].sums, casts[1].sums)
        np.testing.assert_array_equal(casts[0].amax, casts[1].amax)


@every_source
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_groups(name, granularity, rng):
    source, values = sources(rng)[name]
    offsets = np.array([0, 5, 5, ROWS], np.int32)
    actual, expected = (
        cast(x, rows="1x128", transposed=granularity, offsets=offsets) for x in (source, values)
    )
    assert actual.rows.equals(expected.rows)
    for begin, end, column in ((0, 5, 0), (5, ROWS, 256)):
        some = slice(column, column + end - begin)
        np.testing.assert_array_equal(
            actual.transposed.data[:, some].view(np.uint8),
            expected.transposed.data[:, some].view(np.uint8),
        )
