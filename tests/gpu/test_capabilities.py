"""Every operation of the matrix, tried on this GPU."""

import octofold
from gpu_support import needs_gpu
from octofold._probes import PROBES


@needs_gpu
def test_everything_that_has_kernels_works():
    matrix = octofold.capabilities()
    assert matrix.untried == ""
    operations = octofold.info().gpus[0].operations
    for row in matrix.rows:
        if operations[row.operation].available:
            assert row.tried[0].worked, (row.operation, row.granularities, row.tried[0].detail)
        else:
            assert row.tried == {}
    assert any(row.tried for row in matrix.rows)


@needs_gpu
def test_a_wrong_result_is_found():
    probe = next(p for p in PROBES if p.operation == "casts")
    calls = []

    def run(put):
        calls.append(None)
        return probe.run(put) * (1 + 0.1 * len(calls))

    wrong = type(probe)(probe.operation, probe.granularities, run)
    assert wrong.try_on(0)[0] is False
    assert "relative error" in wrong.try_on(0)[1]
