"""The time of what reads and writes memory, beside a copy that moves as many bytes."""

import octofold
import torch
from octofold._timing import Call

from .measure import Build, Implementation, Result, measure
from .operands import relative_error, sets_of
from .run import Run

COPY = "copy"


def keeping(function, sets) -> list[Call]:
    """Calls that each keep their result until they run again, so that no two of them write to the
    same memory."""
    kept = {}

    def call_of(index, arguments):
        def call():
            kept[index] = function(*arguments)

        return call

    return [call_of(index, arguments) for index, arguments in enumerate(sets)]


def copy_of(moved: int, run: Run) -> Build:
    """Copies of device memory."""

    def pair():
        return [
            torch.empty(moved // 2, dtype=torch.uint8, device=run.device).random_() for _ in "ab"
        ]

    def make() -> Implementation:
        pairs = sets_of(pair, moved, run)
        return Implementation([lambda to=to, of=of: to.copy_(of) for to, of in pairs], lambda: 0.0)

    return Build(COPY, make, bytes=moved)


def beside_copy(run: Run, section: str, name: str, moved: int, builds) -> dict[str, Result]:
    """The column "speed" is the share of the copy's rate."""
    return measure(run, section, name, [*builds, copy_of(moved, run)], COPY)


def cast_error(results, expected: torch.Tensor | None) -> float:
    """The largest error of the casts among the results, each of `expected`, of its transpose or of
    a stack of such matrices; NaN where one is not finite. None: they are finite, 0."""
    errors = [0.0]
    for x in results if isinstance(results, tuple) else (results,):
        if not isinstance(x, octofold.ScaledTensor):
            continue
        if len(x.shape) == 3 and x.scale.dim() == 3:  # the first matrix speaks for a stack
            x = octofold.ScaledTensor(x.data[0], x.scale[0], x.granularity)
        values = x.dequantize("float32")
        if expected is None:
            errors.append(0.0 if values.isfinite().all() else float("nan"))
            continue
        matrix = expected[0] if expected.dim() == 3 else expected
        likely = (side for side in (matrix, matrix.T) if side.shape == values.shape)
        errors.append(min(relative_error(values, side) for side in likely))
    return float(torch.tensor(errors).max())  # NaN if one is
