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


def linears(*sizes, seed=0):
    torch.manual_seed(seed)
    return here(torch.nn.Sequential(*(torch.nn.Linear(*size).bfloat16() for size in sizes)))


def frozen(model, format="128x128"):
    model = copy.deepcopy(model)
    for layer in model:
        layer.weight = torch.nn.Parameter(Fp8Weight.cast(layer.weight, format), False)
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
    """Each rank has whole squares of 512 rows, and not of 200. Biases have no codes."""
    new = linears((200, 512), (512, 200), seed=1)
    rollout, expected = frozen(linears((200, 512), (512, 200)), format), frozen(new, format)
    if in_fp8:
        octofold.nn.convert(new, module_filter_fn=lambda layer, _: layer.out_features == 512)
        octofold.distributed.gather_in_fp8(new)
    gathered, whole = [], DTensor.full_tensor
    with patch.object(
        DTensor, "full_tensor", lambda self: gathered.append(self.shape) or whole(self)
    ):
        refit(rollout, fully_shard(new).state_dict(), bucket_bytes=0)
    assert_same(rollout, expected)
    wide = {"128x128": [(200, 512)], "channel": [], "tensor": [(512, 200), (200, 512)]}[format]
    assert [shape for shape in gathered if len(shape) == 2] == wide


@on_two_ranks
def test_stacks_of_experts_travel_as_codes(rank):
    new = here(Experts(128, 72, 4)).bfloat16()
    weights = [Fp8Weight.cast(weight, matrices=4) for weight in new.parameters()]
    expected = Experts.from_weights(*weights)
    rollout = Experts.from_weights(
        *(Fp8Weight.cast(w.dequantize() * 3, matrices=4) for w in weights)
    )
    with patch.object(DTensor, "full_tensor", None):
        refit(rollout, fully_shard(new).state_dict())
    assert_same(rollout, expected)


@pytest.mark.parametrize("format", ["128x128", "1x128", "tensor"])
@on_two_ranks
def test_parts_whose_scales_straddle_ranks(rank, format):
    """150 rows on each rank, then 150 columns."""

    def parallel(model):
        styles = {"0": ColumnParallel(), "1": RowParallel()}
        return parallelize_module(frozen(model, format), init_device_mesh(DEVICE, (2,)), styles)

    new = linears((200, 300), (300, 136), seed=1)
    rollout = parallel(linears((200, 300), (300, 136)))
    before = [layer.weight.codes.data_ptr() for layer in rollout]
    refit(rollout, new.state_dict())
    assert_same(rollout, parallel(new))
    assert [layer.weight.codes.data_ptr() for layer in rollout] == before
