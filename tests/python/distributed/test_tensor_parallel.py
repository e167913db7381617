import pytest
import tensor_parallel_checks as checks
from boundary_checks import STATELESS


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
