"""octofold.models.refit() by what FSDP2 has sharded, of weights that tensor parallelism has cut."""

import copy
from unittest.mock import patch

import octofold
import pytest
import torch
from octofold.distributed import ColumnParallel, RowParallel
from octofold.models import refit
from octofold.nn import Fp8Weight
from octofold.nn.autograd.fitting import local_part
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.rank_processes import DEVICE, here, on_two_ranks


def linears(seed):
    torch.manual_seed(seed)
    return here(
        torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Linear(300, 136)).bfloat16()
    )


@pytest.mark.parametrize(
    ("format", "travel"), [("128x128", []), ("channel", []), ("tensor", [512])]
)
@on_two_ranks
def test_codes_travel_where_ranks_have_whole_units(rank, format, travel):
    new, rollout = (torch.nn.Sequential(here(torch.nn.Linear(72, 512)).bfloat16()) for _ in "ab")
    torch.distributed.broadcast(new[0].weight.data, 0)
    rollout, expected, gathered = frozen(rollout, format), frozen(new, format), []
    full_tensor = DTensor.full_tensor
    with patch.object(
        DTensor, "full_tensor", lambda self: gathered.append(len(self)) or full_tensor(self)
    ):
        refit(rollout, {"0.weight": fully_shard(new).state_dict()["0.weight"]}, strict=False)
    assert gathered == travel
    assert rollout[0].weight.scaled.equals(expected[0].weight.scaled)


def frozen(model, format):
    model = copy.deepcopy(model)
    for layer in model:
        layer.weight = torch.nn.Parameter(Fp8Weight.cast(layer.weight, format), False)
    return model


@pytest.mark.parametrize("source", ["whole", "shards", "shards in fp8"])
@pytest.mark.parametrize(
    ("in_parts", "format"),
    [(False, "128x128"), (True, "128x128"), (True, "1x128"), (True, "tensor")],
)
@on_two_ranks
def test_refit(rank, source, in_parts, format):
    """A part has 150 rows, or 150 columns: scales straddle both ranks."""

    def as_rollout(model):
        styles = {"0": ColumnParallel(), "1": RowParallel()} if in_parts else {}
        return parallelize_module(frozen(model, format), init_device_mesh(DEVICE, (2,)), styles)

    rollout, new = map(linears, (0, 1))
    rollout, expected = as_rollout(rollout), as_rollout(new)
    before = [layer.weight.codes.data_ptr() for layer in rollout]
    if source == "shards in fp8":
        octofold.nn.convert(new, module_filter_fn=lambda layer, _: layer.out_features == 300)
        octofold.distributed.gather_in_fp8(new)
    refit(rollout, (new if source == "whole" else fully_shard(new)).state_dict())
    for own, other in zip(rollout, expected, strict=True):
        assert own.weight.scaled.equals(other.weight.scaled)
        assert torch.equal(local_part(own.bias), local_part(other.bias))
    assert [layer.weight.codes.data_ptr() for layer in rollout] == before
