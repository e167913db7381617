"""FSDP2 whose gathers move FP8, by processes with gloo on the CPU."""

import copy

import octofold
import pytest
import torch

from tests.python.distributed import fsdp_checks


@pytest.mark.parametrize("recipe", fsdp_checks.RECIPES)
def test_bits_are_those_of_casting_after_the_gather(processes, recipe):
    processes.run(fsdp_checks.same_bits, recipe, True, None, False)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
@pytest.mark.parametrize(
    ("reshard", "dtype", "recompute"),
    [(False, None, False), (True, torch.bfloat16, False), (True, None, True)],
    ids=["kept after forward", "bfloat16", "activation checkpointing"],
)
def test_with_the_rest_of_fsdp(two_processes, recipe, reshard, dtype, recompute):
    two_processes.run(fsdp_checks.same_bits, recipe, reshard, dtype, recompute)


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
def test_agreements_come_before_gathers(two_processes, recipe):
    two_processes.run(fsdp_checks.in_wrappings, recipe)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_a_weight_takes_half_of_the_bytes(processes, recipe):
    processes.run(fsdp_checks.bytes_of_gathers, recipe)


def test_scales_are_agreed_on_at_once(two_processes):
    two_processes.run(fsdp_checks.all_reduces)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_a_weight_is_cast_once_a_step(two_processes, recipe):
    two_processes.run(fsdp_checks.casts_of_steps, recipe)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_a_layer_without_its_model(two_processes, recipe):
    two_processes.run(fsdp_checks.without_its_model, recipe)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_inference_mode(two_processes, recipe):
    two_processes.run(fsdp_checks.evaluates, recipe)


def test_replicas_of_shards(four_processes):
    four_processes.run(fsdp_checks.with_replicas)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_over_tensor_parallelism(four_processes, recipe):
    four_processes.run(fsdp_checks.with_tensor_parallelism, recipe)


@pytest.mark.slow
def test_compiled_blocks(two_processes):
    two_processes.run(fsdp_checks.compiled, "blockwise")


def test_shards_within_squares_are_refused(two_processes):
    two_processes.run(fsdp_checks.refuses_shards_within_squares)


def test_ranks_that_gather_other_layers(two_processes):
    two_processes.run(fsdp_checks.refuses_other_layers)


def test_checkpoints_of_one_world_size_load_at_another(two_processes, four_processes, tmp_path):
    expected = two_processes.run(fsdp_checks.saves, tmp_path, "blockwise")[0]
    four_processes.run(fsdp_checks.loads, tmp_path, "blockwise", expected)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_states_that_are_assigned(two_processes, recipe):
    two_processes.run(fsdp_checks.assigned, recipe)


def test_one_process(tmp_path):
    """Without FSDP such a model is what it was."""
    wanted = fsdp_checks.new_model("blockwise", False)
    model = fsdp_checks.new_model("blockwise", True)
    assert torch.equal(model(fsdp_checks.batch(0, 0)), wanted(fsdp_checks.batch(0, 0)))
    twin = copy.deepcopy(model)
    assert fsdp_checks.train(model, 0) == fsdp_checks.train(wanted, 0)
    assert fsdp_checks.train(twin, 0) == fsdp_checks.train(
        fsdp_checks.new_model("blockwise", False), 0
    )
    state = model.state_dict()
    assert {type(tensor) for tensor in state.values()} == {torch.Tensor}
    torch.save(state, tmp_path / "state.pt")
    wanted.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    twin.load_state_dict(state)
    assert torch.equal(twin(fsdp_checks.batch(0, 0)), wanted(fsdp_checks.batch(0, 0)))
    octofold.nn.restore(model)
    assert {type(parameter.data) for parameter in model[1].parameters()} == {torch.Tensor}


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_recipes_whose_weight_is_cast_twice_are_refused(recipe):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256))
    with pytest.raises(octofold.InvalidArgumentError, match="'recipe': expected one with squares"):
        octofold.nn.convert(model, recipe, fsdp_fp8=True)
    assert type(model[0]) is torch.nn.Linear
