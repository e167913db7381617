"""The types that mypy gives casts: it reads this file with the library, and nothing runs it."""

from typing import Any, assert_type

import octofold
from octofold import Format, ScaledTensor, ops


def of_arrays(x: Any, format: Format | str, perhaps: Format | None) -> None:
    assert_type(octofold.quantize(x), ScaledTensor)
    both = ops.cast(x, rows=format, transposed=ops.Target("128x128", scale=x))
    assert_type(both, ops.Casts[ScaledTensor, ScaledTensor])
    assert_type(both.rows, ScaledTensor)
    rows = ops.cast(x, rows="1x128", columns="sums")
    assert_type(rows, ops.Casts[ScaledTensor, None])
    assert_type(rows.norm, ops.NormStatistics | None)
    transposed = ops.cast(ops.Activated(x), transposed=format, offsets=x)
    assert_type(transposed.rows, None)
    assert_type(transposed.transposed, ScaledTensor)
    assert_type(ops.cast(x, rows=format, transposed=perhaps).rows, ScaledTensor)
    assert_type(ops.cast(x, rows=format, transposed=perhaps).transposed, ScaledTensor | None)
    assert_type(Format("e5m2").rule, octofold.Rule)
