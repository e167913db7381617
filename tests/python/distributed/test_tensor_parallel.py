import pytest
import tensor_parallel_checks as checks
from boundary_checks import STATELESS
from rank_processes import Processes


@pytest.mark.parametrize("layout", ["all", "dim 1"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_linear(processes, recipe, layout):
    processes.run(checks.column_parallel, recipe, layout)
    processes.run(checks.row_parallel, recipe, layout)


def test_uneven_features(processes):
    processes.run(checks.uneven)


@pytest.mark.parametrize("layout", ["all", "dim 0"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_norm_linear(two_processes, recipe, layout):
    two_processes.run(checks.norm_linear, recipe, layout)


@pytest.mark.parametrize("recipe", STATELESS)
def test_mlp(processes, recipe):
    processes.run(checks.mlp, recipe, "all", "all")
    processes.run(checks.mlp, recipe, "dim 0", "dim 0", "three")
    processes.run(checks.mlp, recipe, "dim 0", "all", "packed", "rms")
    processes.run(checks.mlp, recipe, "all", "dim 0", "plain")


@pytest.mark.parametrize("recipe", checks.EXPERT_RECIPES)
def test_experts(processes, recipe):
    processes.run(checks.experts, recipe, "all", "all")
    processes.run(checks.experts, recipe, "dim 0", "dim 0", True)
    processes.run(checks.experts, recipe, "dim 0", "all", True, "gelu", 192)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_experts_in_fp8(processes, activation):
    processes.run(checks.fp8_experts, activation, 384)


@pytest.mark.parametrize("kind", ["InferenceLinear", "WeightOnlyLinear"])
def test_fp8_weights(processes, kind):
    processes.run(checks.fp8_weights, kind, (768, 512))
    processes.run(checks.fp8_weights, kind, (264, 300))


@pytest.mark.parametrize("recipe", STATELESS)
def test_attention(processes, recipe):
    processes.run(checks.attention, recipe)


def test_whole_modules(two_processes):
    two_processes.run(checks.whole_modules)


def test_dtensors(processes):
    processes.run(checks.dtensors)


def test_with_fsdp(four_processes):
    four_processes.run(checks.with_fsdp)


def test_checkpoint(two_processes, four_processes, tmp_path):
    two_processes.run(checks.save, str(tmp_path))
    four_processes.run(checks.load, str(tmp_path))
    checks.load(None, str(tmp_path))


def test_compiled(two_processes):
    two_processes.run(checks.compiled)


def test_kept_casts(two_processes):
    two_processes.run(checks.kept_casts)


@pytest.mark.parametrize("what", ["shape", "dtype", "recipe"])
def test_ranks_that_disagree(processes, what):
    for rank, error in enumerate(processes.run(checks.disagreement, what)):
        assert "expected the same on all ranks" in error
        assert "on rank 1" in error
        assert f"this is rank {rank} of {processes.size}" in error


def test_ranks_in_another_order(two_processes):
    for error in two_processes.run(checks.order):
        assert "NormLinear on rank 1" in error


def test_refusals(processes):
    processes.run(checks.refusals)


def test_a_dead_rank():
    started = Processes(2, collective_timeout=20)
    try:
        with pytest.raises(AssertionError) as caught:
            started.run(checks.dead_rank)
        assert "rank 1: the process died" in str(caught.value)
        assert "rank 0" not in str(caught.value)  # it had the error, in time
    finally:
        started.stop()
