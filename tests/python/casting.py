"""Casts in few words, for tests that go through their options."""

from typing import NamedTuple

import pytest
from octofold import Format, Rule, ops
from octofold._core.formats import GRANULARITIES

from tests.python.devices import cast, cpu_only

RULES = tuple(map(str, Rule))
# One of each form: these are compiled for a GPU.
RULE_FORMS = ("deepgemm", "tilekernels", "vllm", "vllm-per-token", "te", "torchao")
RULE_FORMS += ("torchao-tensor", "deepseek", "transformers", "compressed-tensors")
every_rule = pytest.mark.parametrize(
    "rule",
    [rule if rule in RULE_FORMS else pytest.param(rule, marks=cpu_only) for rule in RULES],
)

__all__ = [
    "GRANULARITIES",
    "RULES",
    "cast_side",
    "cast_with",
    "every_rule",
    "formats",
    "only",
    "sides_of",
    "with_columns",
]


def cast_side(
    source, format, transpose=False, *, columns=None, offsets=None, matrices=None, **target
):
    """The one cast that is wanted: of the rows, or of the transpose."""
    side = "transposed" if transpose else "rows"
    wanted = {side: ops.Target(format, **target)}
    given = {"columns": columns, "offsets": offsets, "matrices": matrices}
    return getattr(cast(source, **wanted, **given), side)


def formats(format, targets):
    """The formats that cast() is asked for, by side: "rows", "transposed" or "both"."""
    sides = ("rows", "transposed") if targets == "both" else (targets,)
    return dict.fromkeys(sides, format)


def sides_of(casts):
    """The casts that there are, and whether they are transposes."""
    pairs = ((casts.rows, False), (casts.transposed, True))
    return [(cast, transpose) for cast, transpose in pairs if cast is not None]


def cast_with(
    source,
    *,
    targets="rows",
    dtype="e4m3",
    granularity="1x128",
    transposed_granularity=None,
    columns=None,
    offsets=None,
    matrices=None,
    **options,
):
    """cast() of options one by one, as parametrized tests have them. targets: "rows", "transposed"
    or "both"; the other options are those of a Format."""
    units = granularity, transposed_granularity or granularity
    if targets == "transposed" and transposed_granularity is None:
        units = granularity, granularity
    wanted = {
        side: Format(dtype, unit, **options)
        for side, unit in zip(("rows", "transposed"), units, strict=True)
        if targets in (side, "both")
    }
    return cast(source, **wanted, columns=columns, offsets=offsets, matrices=matrices)


class Columns(NamedTuple):
    sums: object
    amax: object


def only(casts):
    """A cast alone as it is, else (rows, transposed)."""
    one, *others = (cast for cast, _ in sides_of(casts))
    return (one, *others) if others else one


def with_columns(casts):
    """The casts that there are, and then the reductions of columns."""
    return *(cast for cast, _ in sides_of(casts)), Columns(casts.sums, casts.amax)
