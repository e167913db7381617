"""Every operation of the matrix, tried on this GPU."""

import octofold
from octofold import _probes

from tests.gpu.gpu_support import needs_gpu


@needs_gpu
def test_everything_that_has_kernels_works():
    matrix = octofold.capabilities()
    assert matrix.untried == ""
    assert matrix.failures() == []
    here = next(target for target in matrix.targets if 0 in target.gpus)
    for row in matrix.rows:
        has_kernels = row.support[here.name].how in ("native", "kernels")
        assert (0 in row.tried) == has_kernels, row
    assert any(row.tried for row in matrix.rows)


@needs_gpu
def test_a_wrong_result_is_found(monkeypatch):
    calls = []

    def convert(put):
        calls.append(None)
        return octofold.ops.convert_dtype(
            put(_probes._a("numbers") * (1 + 0.1 * len(calls))), "e4m3"
        )

    monkeypatch.setitem(_probes._PROBLEMS, "convert_dtype", convert)
    worked, detail = _probes.try_on(0, "convert_dtype", ())
    assert not worked
    assert "relative error" in detail
