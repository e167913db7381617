"""Casts in few words, for tests that go through their options."""

from octofold import Rule, ops
from octofold._core.formats import GRANULARITIES

RULES = tuple(map(str, Rule))

__all__ = ["GRANULARITIES", "RULES", "cast_side", "formats", "sides_of"]


def cast_side(
    source, format, transpose=False, *, columns=None, offsets=None, matrices=None, **target
):
    """The one cast that is wanted: of the rows, or of the transpose."""
    side = "transposed" if transpose else "rows"
    wanted = {side: ops.Target(format, **target)}
    given = {"columns": columns, "offsets": offsets, "matrices": matrices}
    return getattr(ops.cast(source, **wanted, **given), side)


def formats(format, targets):
    """What cast() is asked for: "rows", "transposed" or "both"."""
    sides = ("rows", "transposed") if targets == "both" else (targets,)
    return dict.fromkeys(sides, format)


def sides_of(casts):
    """The casts that there are, and whether they are transposes."""
    pairs = ((casts.rows, False), (casts.transposed, True))
    return [(cast, transpose) for cast, transpose in pairs if cast is not None]
