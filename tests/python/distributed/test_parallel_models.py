"""Models of transformers by their own tp_plan."""

import pytest

pytest.importorskip("transformers")

import model_checks as checks


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_like_one_process(processes, kind):
    report, error = processes.run(checks.like_one_process, kind)[0]
    print(report, error)
    assert "ColumnParallel" in report
    assert "RowParallel" in report


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_sequence_parallel(processes, kind):
    processes.run(checks.like_one_process, kind, sequence_parallel=True)
