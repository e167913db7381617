"""Many casts at once, into memory that is there."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

from .._core.arrays import framework_for
from .._core.errors import InvalidArgumentError, in_words_of, invalid_argument
from .._core.formats import require_alike
from .._core.frameworks import Array, Framework, StreamLike, common_kind, is_torch
from .._core.library import library
from .._core.ops import Arrays, Options, exported, require_stack
from .._core.scaled_tensor import ScaledTensor
from .cast import FormattedTarget, Target, cast, share_a_read, target_of
from .cast_row import GIVEN, NAMES

_OPERATION: Final = "cast_many"


@dataclass(frozen=True, eq=False)
class CastJob:
    """One of the casts of cast_many().

    source: as in cast(), an array; matrices: as there, a number.
    rows, transposed: as there, one at least, each a Target with `out` and nothing else than it and
        a format.
    """

    source: Array
    rows: Target | None = None
    transposed: Target | None = None
    _: KW_ONLY
    matrices: int | None = None


def cast_many(jobs: Sequence[CastJob], *, stream: StreamLike | None = None) -> None:
    """Cast matrices, each as cast() does, byte for byte, into memory that is there: for instance
    all weights of a model after a step of its optimizer.

    jobs: of one framework and device. What one of them writes has memory of its own, apart from
        all that the others read or write.
    stream: as in gemm(); with one, casts of torch tensors are made one by one.

    On a GPU casts that have dtypes, granularities and rule in common share a launch, up to 27 of
    them in each (four launches, where one cast takes four: "tensor", and "channel"). The host's
    part is some microseconds for each job, and nothing in a CUDA graph. Where torch has to know of
    what is called, under torch.compile for instance, casts are made one by one.
    Raises InvalidArgumentError that names the job and the argument.
    """
    given = [read for index, job in enumerate(jobs) for read in _reads(index, job)]
    if not given:
        return
    arrays = [array for read in given for array in read.arrays]
    common_kind(_OPERATION, ["jobs"] * len(arrays), arrays)
    if is_torch(jobs[0].source) and (stream is not None or not _at_once(arrays)):
        for job in jobs:
            cast(
                job.source,
                rows=job.rows,
                transposed=job.transposed,
                matrices=job.matrices,
                stream=stream,
            )
        return
    framework = framework_for(_OPERATION, "source", jobs[0].source, stream)
    _launch(framework, given)


def _targets(index: int, job: CastJob) -> list[FormattedTarget | None]:
    """The targets for the rows and for the transpose, of a job that is sound."""
    operation = f"{_OPERATION}: job {index}"
    if job.rows is None and job.transposed is None:
        raise invalid_argument(operation, "rows", "a Target here, or for 'transposed'", "None")
    targets: list[FormattedTarget | None] = []
    for name, target in (("rows", job.rows), ("transposed", job.transposed)):
        if target is not None and (not isinstance(target, Target) or target.out is None):
            expected, got = "a Target with 'out'", type(target).__qualname__
            raise invalid_argument(operation, name, expected, got)
        for part in ("scale", "amax"):
            if getattr(target, part, None) is not None:
                expected = "None: cast() takes one"
                raise invalid_argument(operation, f"{name}.{part}", expected, "an array")
        targets.append(None if target is None else target_of(name, target, operation))
    rows, transposed = targets
    if rows is not None and transposed is not None:
        require_alike(operation, "rows", rows.format, "transposed", transposed.format)
    if not isinstance(job.matrices, int | None):
        raise invalid_argument(operation, "matrices", "a number or None", repr(job.matrices))
    require_stack(operation, job.source.shape, job.matrices)
    return targets


class _Read(NamedTuple):
    """The results that one read of a source writes."""

    job: int
    arrays: Arrays
    """The source, codes and scales of rows and of the transpose: None for what is not wanted."""
    options: Options


def _reads(index: int, job: CastJob) -> list[_Read]:
    rows, transposed = _targets(index, job)
    if rows is None or transposed is None or share_a_read(job.source, rows, transposed):
        return [_read(index, job, rows, transposed)]
    return [_read(index, job, rows, None), _read(index, job, None, transposed)]


def _read(
    index: int, job: CastJob, rows: FormattedTarget | None, transposed: FormattedTarget | None
) -> _Read:
    target = rows or transposed
    assert target is not None
    outs = [None if each is None else each.out for each in (rows, transposed)]
    arrays = (job.source, *_parts(outs[0]), *_parts(outs[1]))
    granularities = tuple(None if out is None else out.granularity for out in outs)
    return _Read(index, arrays, (*granularities, *target.format.options, job.matrices))


def _parts(out: ScaledTensor | None) -> Arrays:
    return (None, None) if out is None else (out.data, out.scale)


def _launch(framework: Framework, reads: Sequence[_Read]) -> None:
    arguments: list[Any] = []
    nothing_given, no_columns = (None,) * len(GIVEN), (None,) * 3
    for _, (source, *written), options in reads:
        if not framework.library_takes_arrays:
            source = exported(_OPERATION, "jobs", framework, source, False)
            written = [exported(_OPERATION, "jobs", framework, one, True) for one in written]
        arguments += (source, *nothing_given, *written, *no_columns, *options, None, None)
    try:
        library.cast_many(*arguments, framework.stream)
    except InvalidArgumentError as error:
        number = re.match(rf"{_OPERATION}: job (\d+)", str(error))
        job = f": job {reads[int(number[1])].job}" if number else ""
        raise in_words_of(f"{_OPERATION}{job}", error, NAMES) from None
    for _, (_, *written), _ in reads:
        for array in written:
            if array is not None:
                framework.mark_written(array)


def _at_once(arrays: Arrays | Sequence[Array]) -> bool:
    """True if torch need not know of a call with these tensors."""
    from .._core.torch_ops import is_called_at_once

    return is_called_at_once(arrays) and not any(a is not None and a.is_meta for a in arrays)
