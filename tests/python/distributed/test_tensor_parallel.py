"""Layers of a group of ranks beside the same layers in one process."""

from types import SimpleNamespace

import octofold
import pytest
from octofold import nn
from octofold.nn.layers.linear import require_order
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from tests.python.distributed import tensor_parallel_checks as checks
from tests.python.distributed import tensor_parallel_use_checks as uses
from tests.python.distributed.boundary_checks import STATELESS
from tests.python.distributed.rank_processes import Processes

TWO = pytest.mark.parametrize("processes", [2], indirect=True)


@pytest.mark.parametrize("layout", ["all", "dim 1"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_linear(processes, recipe, layout):
    processes.run(checks.column_parallel, recipe, layout)
    processes.run(checks.row_parallel, recipe, layout)


@pytest.mark.parametrize("recipe", STATELESS)
def test_few_tokens(processes, recipe):
    processes.run(checks.few_tokens, recipe)


def test_uneven_features(processes):
    processes.run(checks.uneven)


@TWO
@pytest.mark.parametrize("layout", ["all", "dim 0"])
@pytest.mark.parametrize("recipe", STATELESS)
def test_norm_linear(processes, recipe, layout):
    processes.run(checks.norm_linear, recipe, layout)


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
    processes.run(checks.fp8_weights, kind, (768, 512), 32)
    processes.run(checks.fp8_weights, kind, (264, 300), 1)


@pytest.mark.parametrize("recipe", STATELESS)
def test_attention(processes, recipe):
    processes.run(checks.attention, recipe)


@TWO
def test_whole_modules(processes):
    processes.run(checks.whole_modules)


def test_dtensors(processes):
    processes.run(checks.dtensors)


def test_with_fsdp(processes):
    processes.run(uses.with_fsdp)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoint(processes, tmp_path):
    processes.run(uses.save, str(tmp_path))
    processes.run(uses.load, str(tmp_path))
    uses.load(None, str(tmp_path))


@TWO
@pytest.mark.parametrize("kind", ["block", "attention"])
def test_compiled(processes, kind):
    processes.run(uses.compiled, kind)


@TWO
def test_kept_casts(processes):
    processes.run(uses.kept_casts)


@pytest.mark.parametrize("what", ["shape", "dtype", "recipe"])
def test_ranks_that_disagree(processes, what):
    for rank, error in enumerate(processes.run(uses.disagreement, what)):
        assert "expected the same on all ranks" in error
        assert "on rank 1" in error
        assert f"this is rank {rank} of {processes.size}" in error


@TWO
def test_ranks_in_another_order(processes):
    for error in processes.run(uses.order):
        assert "NormLinear on rank 1" in error


@pytest.mark.parametrize("what", ["linear", "frozen", "experts"])
def test_ranks_that_take_one_layer_for_another(processes, what):
    processes.run(uses.layers_alike, what)


def test_refusals(processes):
    processes.run(uses.refusals)


@pytest.mark.slow
def test_a_dead_rank():
    started = Processes(2, collective_timeout=20)
    try:
        error, _ = started.run(uses.dead_rank, may_die=1)
        assert "expected all 2 ranks to take part, got on rank 0" in error
    finally:
        started.stop()


@pytest.mark.parametrize("kind", ["experts", "mlp"])
def test_packed_state(processes, kind):
    processes.run(uses.packed_state, kind)


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.Linear(128, 128), "weight"), (nn.Experts(128, 128, 2), "gate_up_proj")],
    ids=["Linear", "Experts"],
)
def test_rows_that_torch_2_11_divides_after_they_are_packed(layer, name):
    """Its FSDP2 names its part of packed rows a plain shard, and torch 2.13 a strided one."""
    fsdp_of_packed = [Shard(0), _StridedShard(0, split_factor=2)]
    words = f"nn.{type(layer).__name__}: argument '{name}': .* gate and up that are two layers"
    with pytest.raises(octofold.InvalidArgumentError, match=words):
        setattr(layer, name, SimpleNamespace(device_mesh=None, placements=fsdp_of_packed))
    for fine in ([_StridedShard(0, split_factor=2), Shard(0)], [Shard(1), fsdp_of_packed[1]]):
        require_order("mlp", "weight", SimpleNamespace(placements=fine))
