"""octofold.models.refit() of what ranks have parts of: sources that FSDP2 has sharded, and weights
that tensor parallelism has cut."""

import copy
from unittest.mock import patch

import octofold
import pytest
import torch
from octofold.distributed import ColumnParallel, RowParallel
from octofold.models import refit
from octofold.nn import Experts, Fp8Weight
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.rank_processes import DEVICE, here, on_two_ranks


def linears(seed, *sizes):
    torch.manual_seed(seed)
    return here(torch.nn.Sequential(*(torch.nn.Linear(*size).bfloat16() for size in sizes)))


def frozen(model, format="128x128"):
    """With FP8 weights, of experts too."""
    model = copy.deepcopy(model)
    for layer in model.children():
        for name, weight in [*layer.named_parameters()]:
            if weight.dim() > 1:
                cast = Fp8Weight.cast(weight, format, len(weight) if weight.dim() == 3 else None)
                layer._parameters[name] = torch.nn.Parameter(cast, False)
    return model


def assert_same(model, other):
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        if isinstance(own, Fp8Weight):
            assert own.scaled.equals(expected.scaled)
        else:
            own, expected = (getattr(each, "_local_tensor", each) for each in (own, expected))
            assert torch.equal(own, expected)


@pytest.mark.parametrize("in_fp8", [False, True])
@pytest.mark.parametrize("format", ["128x128", "channel", "tensor"])
@on_two_ranks
def test_shards_travel_as_codes(rank, format, in_fp8):
    """Each rank has whole squares of 512 rows and of experts, and not of 200 rows."""
    new, rollout = (linears(seed, (200, 512), (512, 200)) for seed in (1, 0))
    new.append(here(Experts(128, 72, 4)).bfloat16())
    rollout.append(copy.deepcopy(new[2]).apply(lambda experts: experts.reset_parameters()))
    rollout, expected = frozen(rollout, format), frozen(new, format)
    if in_fp8:
        octofold.nn.convert(new, module_filter_fn=lambda layer, _: layer.out_features == 512)
        octofold.distributed.gather_in_fp8(new)
    gathered, whole = [], DTensor.full_tensor
    with patch.object(
        DTensor, "full_tensor", lambda self: gathered.append(self.shape) or whole(self)
    ):
        refit(rollout, fully_shard(new).state_dict(), bucket_bytes=0)
    assert_same(rollout, expected)
    wide = {"128x128": [200], "channel": [], "tensor": [512, 200, 4, 4]}[format]
    assert [shape[0] for shape in gathered if len(shape) > 1] == wide


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
