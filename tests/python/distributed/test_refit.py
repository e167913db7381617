"""octofold.models.refit() of what ranks have parts of: sources that FSDP2 has sharded, and weights
that tensor parallelism has cut."""

import copy

import octofold
import pytest
import torch
from octofold.distributed import ColumnParallel, RowParallel
from octofold.models import refit
from octofold.nn import Fp8Weight
from octofold.nn.autograd.fitting import local_part
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.rank_processes import DEVICE, here, on_two_ranks


def linears(seed, *sizes):
    torch.manual_seed(seed)
    return here(torch.nn.Sequential(*(torch.nn.Linear(*size).bfloat16() for size in sizes)))


def frozen(model, format="128x128"):
    model = copy.deepcopy(model)
    for layer in model:
        layer.weight = torch.nn.Parameter(Fp8Weight.cast(layer.weight, format), False)
    return model


def assert_same(model, other):
    for own, expected in zip(model, other, strict=True):
        assert own.weight.scaled.equals(expected.weight.scaled)
        assert torch.equal(local_part(own.bias), local_part(expected.bias))


@pytest.mark.parametrize("in_fp8", [False, True])
@on_two_ranks
def test_shards_are_gathered(rank, in_fp8):
    new, rollout = (linears(seed, (200, 512), (512, 200)) for seed in (1, 0))
    rollout, expected = frozen(rollout), frozen(new)
    if in_fp8:
        octofold.nn.convert(new, module_filter_fn=lambda layer, _: layer.out_features == 512)
        octofold.distributed.gather_in_fp8(new)
    refit(rollout, fully_shard(new).state_dict())
    assert_same(rollout, expected)


@pytest.mark.parametrize("format", ["128x128", "1x128", "tensor"])
@on_two_ranks
def test_parts_whose_scales_straddle_ranks(rank, format):
    """150 rows on each rank, then 150 columns."""

    def parallel(model):
        styles = {"0": ColumnParallel(), "1": RowParallel()}
        return parallelize_module(frozen(model, format), init_device_mesh(DEVICE, (2,)), styles)

    rollout, new = (linears(seed, (200, 300), (300, 136)) for seed in (0, 1))
    rollout = parallel(rollout)
    before = [layer.weight.codes.data_ptr() for layer in rollout]
    refit(rollout, new.state_dict())
    assert_same(rollout, parallel(new))
    assert [layer.weight.codes.data_ptr() for layer in rollout] == before
