"""Many casts at once: those of cast(), byte for byte."""

import numpy as np
import pytest
from octofold import Format, InvalidArgumentError
from octofold.ops import CastJob, Target, cast

from tests.cases.shapes import CAST_MANY
from tests.python import reference
from tests.python.casting import GRANULARITIES
from tests.python.devices import cast_many, cpu_only, gpu_only

pytestmark = pytest.mark.usefixtures("each_device")


def job_of(x, granularity, rule="deepgemm", rows=True, transposed=True):
    """Into memory that holds something else."""
    format = Format(granularity=granularity, rule=rule)
    matrices = x.shape[0] if len(x.shape) == 3 else None
    out = cast(x * 0 + 3, rows=format, transposed=format, matrices=matrices)
    targets = [
        Target(format, out=cast) if wanted else None
        for cast, wanted in zip(out[:2], (rows, transposed), strict=True)
    ]
    return CastJob(x, *targets, matrices=matrices)


def assert_cast(job):
    for name in ("rows", "transposed"):
        target = getattr(job, name)
        if target is not None:
            wanted = cast(job.source, matrices=job.matrices, **{name: target.format})
            assert target.out.equals(getattr(wanted, name))


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_are_casts_of_each(source, rng):
    """More than fit into a launch, in memory whose other bytes stay as they are."""
    kinds = [(unit, rule) for unit in GRANULARITIES for rule in ("deepgemm", "torchao")]
    sources = [rng.normal(0, 1, shape).astype(reference.DTYPES[source]) for shape in CAST_MANY]
    jobs = [job_of(x, *kind) for kind in kinds for x in sources]
    jobs += [
        job_of(sources[0], "channel", rows=False),
        job_of(sources[2], "1x128", transposed=False),
    ]
    jobs.insert(2, mixed_job(sources[0]))
    cast_many(jobs)
    for job in jobs:
        assert_cast(job)
    cast_many([])


@gpu_only
def test_as_cast_alone_for_weights_of_a_model(rng):
    """Weights of a size at which blocks of several waves run."""
    bfloat16 = reference.DTYPES["bfloat16"]
    jobs = [job_of(rng.normal(0, 1, (1024, 2048)).astype(bfloat16), "128x128") for _ in range(30)]
    cast_many(jobs)
    for job in jobs:
        assert_cast(job)


def mixed_job(x):
    """A job which takes two reads."""
    rows, transposed = (job_of(x, unit) for unit in ("channel", "tensor"))
    return CastJob(x, rows.rows, transposed.transposed)


@cpu_only
def test_of_torch():
    torch = pytest.importorskip("torch")
    jobs = [job_of(torch.randn(shape).bfloat16(), "128x128") for shape in CAST_MANY]
    version = jobs[0].rows.out.data._version
    cast_many(jobs)
    assert jobs[0].rows.out.data._version == version + 1
    for job in jobs:
        assert_cast(job)
        job.source.mul_(-2)
    # If torch has to know, and with a stream, the jobs are done one by one.
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        torch.compile(lambda: cast_many(jobs), backend="eager")()
    for job in jobs:
        assert_cast(job)
    for job in jobs:
        job.source.mul_(3)
    cast_many(jobs, stream=0)
    for job in jobs:
        assert_cast(job)


@cpu_only
def test_nothing_is_differentiated():
    torch = pytest.importorskip("torch")
    job = job_of(torch.randn(4, 8), "1x128")
    job.source.requires_grad_()
    with pytest.raises(Exception, match="nothing to differentiate"):
        cast_many([job])


@cpu_only
def test_frameworks_do_not_mix():
    torch = pytest.importorskip("torch")
    jobs = [job_of(torch.ones(4, 8), "1x128"), job_of(np.ones((4, 8), np.float32), "1x128")]
    with pytest.raises(InvalidArgumentError, match="cast_many: argument 'jobs'"):
        cast_many(jobs)
    with pytest.raises(InvalidArgumentError, match="cast_many: argument 'jobs'"):
        cast_many(jobs[::-1])
