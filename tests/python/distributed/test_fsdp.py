"""FSDP2 and DDP beside one process; FSDP2 whose gathers move FP8, beside FSDP2 that gathers weights
as they are."""

import copy
from unittest.mock import patch

import octofold
import pytest
import torch
from octofold.distributed import ColumnParallel, MLPParallel, RowParallel, fsdp, gather_in_fp8
from octofold.distributed.fsdp import ShardedWeight
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.python.distributed.rank_processes import (
    DEVICE,
    each_call_waits,
    here,
    on_four_ranks,
    on_ranks,
    on_two_ranks,
)

STEPS = 2
both_scalings = pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])


class Block(torch.nn.Module):
    """Some of each kind of layer."""

    def __init__(self, recipe):
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.second = torch.nn.Linear(512, 512, bias=False)
        self.mlp = octofold.nn.MLP(512, 512, recipe=recipe, force_fp8=True, norm="rms")
        self.mixture = octofold.nn.MixtureOfExperts(512, 128, 4, 2, recipe=recipe)

    def forward(self, x):
        y = self.second(torch.nn.functional.gelu(self.first(x)))
        return self.mixture(self.mlp(y))


def converted(model, recipe="blockwise", in_fp8=True):
    """in_fp8: how FSDP gathers its weights."""
    octofold.nn.convert(model, recipe, force_fp8=True)
    return here(gather_in_fp8(model) if in_fp8 else model)


def new_model(recipe, in_fp8):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(recipe), torch.nn.Linear(512, 512))
    return converted(model, recipe, in_fp8)


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return here(torch.randn(24, 256, generator=generator))


def sharded(model, reshard=True, dtype=None):
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for module in model:
        fully_shard(module, reshard_after_forward=reshard, mp_policy=policy)
    return fully_shard(model, reshard_after_forward=reshard, mp_policy=policy)


def whole(model):
    return fully_shard(model)


def first_and_rest(model):
    fully_shard(model[0])
    return fully_shard(model)


def one_group(model):
    fully_shard([*model])
    return fully_shard(model)


def inside_another(model):
    return fully_shard(torch.nn.Sequential(model))


def model_of(kind):
    """Each token goes to all experts: no choice depends on the last bits of a sum."""
    torch.manual_seed(0)
    nn, linear = octofold.nn, torch.nn.Linear
    if kind == "experts":
        return here(torch.nn.Sequential(nn.MixtureOfExperts(256, 128, 4, 4)))
    if kind == "fused":
        linears = [linear(192, 160), linear(192, 160), linear(160, 130)]
        norm = torch.nn.LayerNorm(192)
        mlp = nn.MLP.from_linears(*linears, norm=norm, force_fp8=True)
        return here(torch.nn.Sequential(nn.NormLinear(256, 192, force_fp8=True), mlp))
    model = torch.nn.Sequential(linear(256, 192), torch.nn.GELU(), linear(192, 130, bias=False))
    nn.convert(model, force_fp8=True)
    return here(model)


WAYS = {
    "DDP": DistributedDataParallel,
    "FSDP2": sharded,
    "FSDP2, kept after forward": lambda model: sharded(model, reshard=False),
}


@pytest.mark.parametrize(
    ("way", "kind"),
    [*((way, "linear") for way in WAYS), ("FSDP2", "fused"), ("FSDP2", "experts")],
)
@on_two_ranks
def test_trains_as_one_process_with_all_batches(rank, way, kind):
    """Up to the order of sums, as measured by how far training has gone."""
    initial, alone, model = (model_of(kind) for _ in range(3))
    names = list(model.state_dict())
    model = WAYS[way](model)
    for trained, ranks in ((alone, range(2)), (model, [rank])):
        optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
        for step in range(3):
            for each in ranks:
                (trained(batch(step, each)).square().mean() / len(ranks)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert way == "DDP" or list(model.state_dict()) == names
    found = model.parameters() if way == "DDP" else full(model)
    for actual, wanted, start in zip(found, alone.parameters(), initial.parameters(), strict=True):
        gone = (wanted - start).norm()
        assert gone > 0
        assert (actual - wanted).norm() < 1e-3 * gone


@on_two_ranks
def test_what_fsdp_cannot_do(rank):
    x = batch(0, rank)
    for kind, layer in (("linear", "0"), ("experts", "0.experts")):
        model = sharded(model_of(kind))
        model.get_submodule(layer).main_grad = True
        message = "'main_grad': expected False where"
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            model(x)
    model = model_of("fused")
    fully_shard(model[0].linear)
    with pytest.raises(octofold.InvalidArgumentError, match="'weight': expected whole weights"):
        model(x)
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(256, 192)))
    with pytest.raises(octofold.InvalidArgumentError, match="convert before fully_shard"):
        octofold.nn.convert(model)


@on_two_ranks
def test_agreements_come_before_gathers(rank):
    """Losses are those of casting after the gather, whichever modules are gathered together, and
    from the second forward on the model agrees on all scales at once before it gathers, if its own
    hooks can."""
    largest = fsdp.largest
    with patch.object(fsdp, "largest", side_effect=largest) as called:
        for wrap in (sharded, whole, first_and_rest, one_group, inside_another):
            wanted = train(wrap(new_model("tensorwise", False)), rank)
            called.reset_mock()
            assert train(wrap(new_model("tensorwise", True)), rank) == wanted, wrap.__name__
            sizes = [call.args[1].numel() for call in called.call_args_list]
            alone = sizes.count(1)
            assert sizes == [1] * alone + ([] if wrap is inside_another else [alone]), wrap.__name__
            assert alone >= 3  # scales of weights


def train(model, rank, recompute=False):
    """Losses, as they come."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for step in range(STEPS):
        x = batch(step, rank)
        y = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        loss = y.float().square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def full(model):
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


@both_scalings
@on_ranks
def test_bits_are_those_of_casting_after_the_gather(rank, recipe):
    same_bits(rank, recipe)


@both_scalings
@pytest.mark.parametrize(
    "options",
    [{"reshard": False}, {"dtype": torch.bfloat16}, {"recompute": True}],
    ids=["kept after forward", "bfloat16", "activation checkpointing"],
)
@on_two_ranks
def test_with_the_rest_of_fsdp(rank, recipe, options):
    same_bits(rank, recipe, **options)


def same_bits(rank, recipe, reshard=True, dtype=None, recompute=False):
    """Losses and weights of training, to the bit."""
    wanted = sharded(new_model(recipe, False), reshard, dtype)
    model = sharded(new_model(recipe, True), reshard, dtype)
    names = list(wanted.state_dict())
    assert list(model.state_dict()) == names
    assert train(model, rank, recompute) == train(wanted, rank, recompute)
    for actual, expected in zip(full(model), full(wanted), strict=True):
        assert torch.equal(actual, expected)


@both_scalings
@on_ranks
def test_a_weight_takes_half_of_the_bytes(rank, recipe):
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    model = sharded(new_model(recipe, True))
    seen = []
    inputs = _fsdp_param.FSDPParam.all_gather_inputs

    def counted(self):
        sent = inputs.fget(self)
        seen.append((self._orig_size, sum(tensor.nbytes for tensor in sent)))
        return sent

    with patch.object(_fsdp_param.FSDPParam, "all_gather_inputs", property(counted)):
        model(batch(0, rank))
    ranks = torch.distributed.get_world_size()
    weights = [(size, sent) for size, sent in seen if len(size) > 1 and tuple(size) != (4, 512)]
    assert len(weights) == 7
    for size, sent in weights:
        scales = size.numel() / 128**2
        if recipe == "tensorwise":  # none, but for each expert
            scales = size[0] if len(size) == 3 else 0
        assert sent == (size.numel() + 4 * scales) / ranks, (size, sent)


@both_scalings
@on_two_ranks
def test_a_weight_is_cast_once_a_step(rank, recipe):
    """Forward casts each weight, backward none; and after an evaluation, and after the optimizer,
    forward does again."""
    model = sharded(new_model(recipe, True))
    calls = []

    def counting(original):
        def counted(weight, *arguments, **options):
            calls.append(weight.float().sum())
            return original(weight, *arguments, **options)

        return counted

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    sums = []
    originals = {name: counting(getattr(fsdp, name)) for name in ("cast", "cast_weight")}
    with patch.multiple(fsdp, **originals):
        for step in range(2):
            model.eval()
            with torch.no_grad():
                model(batch(step, rank))
            model.train()
            loss = model(batch(step, rank)).float().square().mean()
            forward = len(calls)
            loss.backward()
            assert len(calls) == forward
            optimizer.step()
            optimizer.zero_grad()
            sums.append(torch.stack(calls))
            calls.clear()
    weights = sum(isinstance(p.to_local(), ShardedWeight) for p in model.parameters())
    for of_step in sums:
        assert len(of_step) == 2 * weights
    assert not torch.equal(*sums)


@both_scalings
@on_two_ranks
def test_a_layer_without_its_model(rank, recipe):
    """A layer that runs by itself, so that no hook of its model's agrees on scales: each step has
    those of its own weights."""
    found = []
    for in_fp8 in (False, True):
        torch.manual_seed(0)
        model = converted(torch.nn.Sequential(torch.nn.Linear(256, 256)), recipe, in_fp8)
        layer = fully_shard(model[0])
        optimizer = torch.optim.SGD(layer.parameters(), lr=10.0)
        losses = []
        for step in range(3):
            loss = layer(batch(step, rank)).float().square().mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        found.append(losses)
    assert found[0] == found[1]


@both_scalings
@on_two_ranks
def test_inference_mode(rank, recipe):
    """In torch.inference_mode(), twice before any training, and between steps."""
    losses = []
    for in_fp8 in (False, True):
        never_trained, model = (sharded(new_model(recipe, in_fp8)).eval() for _ in range(2))
        with torch.inference_mode():
            found = [never_trained(batch(step, rank)).sum().item() for step in (5, 5)]
        for _ in range(2):
            found += train(model.train(), rank)
            with torch.inference_mode():
                found.append(model.eval()(batch(5, rank)).sum().item())
            model.reshard()
        losses.append(found)
    assert losses[0] == losses[1]


@on_two_ranks
def test_shards_within_squares_are_refused(rank):
    for rows, dim, got in ((192, 0, r"\[192, 256"), (256, 1, r"parts \[256, 128\] of \[256, 256")):
        model = converted(torch.nn.Sequential(torch.nn.Linear(256, rows, bias=False)))
        fully_shard(model, shard_placement_fn=lambda _, dim=dim: Shard(dim))
        message = f"of '0.weight' on each rank, got {got}"
        with pytest.raises(octofold.UnsupportedError, match=message):
            model(batch(0, rank))


@on_two_ranks
def test_ranks_that_gather_other_layers(rank):
    layers = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
    model = converted(torch.nn.Sequential(*layers), "tensorwise")
    for layer in model:
        fully_shard(layer)
    message = r"'weights': .* got 0.weight from torch.float32 on rank 0 and 1.weight .* on rank 1"
    with each_call_waits(), pytest.raises(octofold.InvalidArgumentError, match=message):
        model[rank](batch(0, rank))


def saves(rank, folder):
    model = sharded(new_model("blockwise", True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(batch(0, rank)).square().mean().backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    plain = [t.to_local() if isinstance(t, DTensor) else t for t in of_model.values()]
    assert {type(tensor) for tensor in plain} == {torch.Tensor}
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    whole = [parameter.cpu() for parameter in full(model)]
    return whole if rank == 0 else None


def loads(rank, folder, expected):
    model = sharded(new_model("blockwise", True))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for actual, wanted in zip(full(model), expected, strict=True):
        assert torch.equal(actual, here(wanted))
    model(batch(1, rank)).square().mean().backward()
    optimizer.step()


def test_checkpoints_of_one_world_size_load_at_another(two_processes, four_processes, tmp_path):
    expected = two_processes.run(saves, tmp_path)[0]
    four_processes.run(loads, tmp_path, expected)


@both_scalings
@on_two_ranks
def test_states_that_are_assigned(rank, recipe):
    """load_state_dict(assign=True), before the first forward and after it: the weights of the state
    train, and travel as before."""
    source = sharded(new_model(recipe, False))
    for parameter in source.parameters():
        torch.nn.init.constant_(parameter, 0.02)
    losses = []
    for in_fp8, forwards in ((False, 0), (True, 0), (True, 1)):
        model = sharded(new_model(recipe, in_fp8))
        for _ in range(forwards):
            model(batch(5, rank)).float().square().mean().backward()
            model.zero_grad()
        kinds = [type(parameter.to_local()) for parameter in model.parameters()]
        state = {name: part.clone() for name, part in source.state_dict().items()}
        model.load_state_dict(state, assign=True)
        assert [type(parameter.to_local()) for parameter in model.parameters()] == kinds
        losses.append(train(model, rank))
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.slow
@on_two_ranks
def test_compiled_blocks(rank):
    """Each block by itself, as torchtitan has it. Compiled code may round otherwise."""
    wanted = train(sharded(new_model("blockwise", True)), rank)
    model = new_model("blockwise", True)
    for module in model:
        module.compile()
    losses = train(sharded(model), rank)
    assert losses[0] == pytest.approx(wanted[0], rel=1e-4)
    assert losses == pytest.approx(wanted, rel=0.1)


@both_scalings
@on_four_ranks
def test_over_tensor_parallelism(rank, recipe):
    """FSDP over tensor parallelism, two by two: the bits of casting after the gather."""
    mesh = torch.distributed.device_mesh.init_device_mesh(
        DEVICE, (2, 2), mesh_dim_names=("data", "tensor")
    )
    torch.manual_seed(0)
    parameters, losses = [], []
    for in_fp8 in (False, True):
        model = new_parallel_model(recipe, mesh["tensor"])
        if in_fp8:
            gather_in_fp8(model)
        for module in model:
            fully_shard(module, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        losses.append(train(model, mesh["data"].get_local_rank()))
        parameters.append(full(model))
        assert {type(part) for part in model.state_dict().values()} == {DTensor}
    assert losses[0] == losses[1]
    for wanted, actual in zip(*parameters, strict=True):
        assert torch.equal(wanted, actual)


def new_parallel_model(recipe, mesh):
    torch.manual_seed(0)
    first, *others = (torch.nn.Linear(size, 512) for size in (256, 512, 512, 512, 512))
    options = {"recipe": recipe, "force_fp8": True}
    model = torch.nn.Sequential(first, others[0])
    if recipe == "blockwise":  # with one scale gate and up have one each, and not one for both
        model.append(octofold.nn.MLP.from_linears(*others[1:], **options))
    octofold.nn.convert(model, recipe, force_fp8=True)
    styles = ColumnParallel(), RowParallel(), MLPParallel()
    plan = {name: style for (name, _), style in zip(model.named_children(), styles, strict=False)}
    return parallelize_module(here(model), mesh, plan)


@on_four_ranks
def test_replicas_of_shards(rank):
    """Two replicas of two shards: codes are gathered, and scales agreed on, within each."""
    mesh = torch.distributed.device_mesh.init_device_mesh(
        DEVICE, (2, 2), mesh_dim_names=("replicas", "shards")
    )
    losses = []
    for in_fp8 in (False, True):
        model = new_model("tensorwise", in_fp8)
        for module in (*model, model):
            fully_shard(module, mesh=mesh)
        losses.append(train(model, rank))
    assert losses[0] == losses[1]


def test_one_process(tmp_path):
    """Without FSDP such a model is what it was."""
    wanted = new_model("blockwise", False)
    model = new_model("blockwise", True)
    assert torch.equal(model(batch(0, 0)), wanted(batch(0, 0)))
    twin = copy.deepcopy(model)
    assert train(model, 0) == train(wanted, 0)
    assert train(twin, 0) == train(new_model("blockwise", False), 0)
    state = model.state_dict()
    assert {type(tensor) for tensor in state.values()} == {torch.Tensor}
    torch.save(state, tmp_path / "state.pt")
    wanted.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    twin.load_state_dict(state)
    assert torch.equal(twin(batch(0, 0)), wanted(batch(0, 0)))
    octofold.nn.restore(model)
    assert {type(parameter.data) for parameter in model[1].parameters()} == {torch.Tensor}


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_recipes_whose_weight_is_cast_twice_are_refused(recipe):
    model = converted(torch.nn.Sequential(torch.nn.Linear(256, 256)), recipe, in_fp8=False)
    with pytest.raises(octofold.InvalidArgumentError, match="'recipe': expected one with squares"):
        gather_in_fp8(model)
    assert type(model[0].weight.data) is torch.Tensor
