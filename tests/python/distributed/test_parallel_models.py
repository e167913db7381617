"""Models of transformers, converted and split by their own tp_plan."""

import pytest

pytest.importorskip("transformers")

from tests.python.distributed import model_checks as checks

SIZES = pytest.mark.parametrize(
    "processes", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True
)


@SIZES
@pytest.mark.parametrize(
    ("kind", "sequence_parallel"),
    [
        ("llama", True),
        ("qwen3_moe", False),
        pytest.param("llama", False, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", True, marks=pytest.mark.slow),
    ],
)
def test_like_one_process(processes, kind, sequence_parallel):
    options = {"sequence_parallel": sequence_parallel}
    report = processes.run(checks.like_one_process, kind, **options)[0]
    tokens = "input_layouts=S(1)" if sequence_parallel else ""
    assert f"octofold.nn.Linear, recipe=blockwise, ColumnParallel({tokens}): model.layers" in report
    if checks.splits_embedding(kind):
        assert "torch.Embedding, torch's RowwiseParallel: model.embed_tokens" in report
    assert "torch.Linear (it is the output head), torch's ColwiseParallel: lm_head" in report
    assert "left alone: " not in report


@SIZES
def test_more(processes):
    """Tied weights stay tied; recipes; what is refused."""
    processes.run(checks.tied)
    processes.run(checks.converted_before)
    processes.run(checks.fp8_weights)
    processes.run(checks.refusals)


@SIZES
def test_with_fsdp(processes):
    processes.run(checks.with_fsdp)
