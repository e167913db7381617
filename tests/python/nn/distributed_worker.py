"""One of two processes: DDP and FSDP2 of converted models, against the same model trained in one
process. usage: distributed_worker.py RANK FILE [DEVICE]      cpu (by gloo) or cuda (by NCCL)"""

import sys

import octofold
import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

PROCESSES = 2
STEPS = 3


def device():
    """The device of this process."""
    return sys.argv[3] if len(sys.argv) > 3 else "cpu"


def new_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 192), torch.nn.GELU(), torch.nn.Linear(192, 130, bias=False)
    )
    octofold.nn.convert(model, force_fp8=True)
    return model.to(device())


def new_fused_model():
    torch.manual_seed(0)
    linears = [torch.nn.Linear(192, 160), torch.nn.Linear(192, 160), torch.nn.Linear(160, 130)]
    model = torch.nn.Sequential(
        octofold.nn.NormLinear(256, 192, force_fp8=True),
        octofold.nn.MLP.from_linears(*linears, norm=torch.nn.LayerNorm(192), force_fp8=True),
    )
    return model.to(device())


def new_experts():
    """To all of which each token goes: no choice depends on the last bits of a sum."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(octofold.nn.MixtureOfExperts(256, 128, 4, 4))
    return model.to(device())


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(24, 256, generator=generator).to(device())


def loss_of(model, step, rank):
    return model(batch(step, rank)).square().mean()


def trained_alone(model):
    """By the gradients of all processes' batches, averaged, in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(STEPS):
        for rank in range(PROCESSES):
            (loss_of(model, step, rank) / PROCESSES).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def train(model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(STEPS):
        loss_of(model, step, rank).backward()
        optimizer.step()
        optimizer.zero_grad()


def require_same(parameters, expected, initial):
    """Up to the order of sums: as measured by how far training has gone."""
    for actual, wanted, start in zip(parameters, expected, initial, strict=True):
        gone = (wanted - start).norm()
        assert gone > 0
        assert (actual - wanted).norm() < 1e-3 * gone, (actual - wanted).norm() / gone


def check_ddp(rank, expected, initial):
    model = DistributedDataParallel(new_model())
    train(model, rank)
    require_same(model.parameters(), expected, initial)


def check_fsdp(rank, expected, initial, reshard_after_forward):
    model = new_model()
    names = list(model.state_dict())
    for layer in (model[0], model[2]):
        fully_shard(layer, reshard_after_forward=reshard_after_forward)
    fully_shard(model, reshard_after_forward=reshard_after_forward)
    assert model[0].weight.to_local().shape == (96, 256)
    train(model, rank)
    assert list(model.state_dict()) == names
    full = [parameter.full_tensor() for parameter in model.parameters()]
    require_same(full, expected, initial)
    model[0].main_grad = True
    with pytest.raises(octofold.InvalidArgumentError, match="'main_grad': expected False where"):
        loss_of(model, 0, rank)


def check_fsdp_of_fused_modules(rank):
    model = new_fused_model()
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    expected = [parameter.detach() for parameter in trained_alone(model).parameters()]
    model = new_fused_model()
    for module in model:
        fully_shard(module)
    fully_shard(model)
    train(model, rank)
    require_same([parameter.full_tensor() for parameter in model.parameters()], expected, initial)
    model = new_fused_model()
    fully_shard(model[0].linear)
    with pytest.raises(octofold.InvalidArgumentError, match="'weight': expected whole weights"):
        loss_of(model, 0, rank)


def check_fsdp_of_experts(rank):
    model = new_experts()
    initial = [parameter.detach().clone() for parameter in model.parameters()]
    expected = [parameter.detach() for parameter in trained_alone(model).parameters()]
    model = new_experts()
    experts = model[0].experts
    fully_shard(experts)
    fully_shard(model)
    assert experts.gate_up_proj.to_local().shape == (2, 256, 256)
    train(model, rank)
    require_same([parameter.full_tensor() for parameter in model.parameters()], expected, initial)
    experts.main_grad = True
    with pytest.raises(octofold.InvalidArgumentError, match="'main_grad': expected False where"):
        loss_of(model, 0, rank)


def check_conversion_comes_first():
    model = torch.nn.Sequential(torch.nn.Linear(256, 192))
    fully_shard(model)
    with pytest.raises(octofold.InvalidArgumentError, match="convert before fully_shard"):
        octofold.nn.convert(model)


def main():
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    if device() == "cuda":
        torch.cuda.set_device(rank)
    backend = "gloo" if device() == "cpu" else "nccl"
    store = torch.distributed.FileStore(file, PROCESSES)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=PROCESSES)
    initial = [parameter.detach().clone() for parameter in new_model().parameters()]
    expected = [parameter.detach() for parameter in trained_alone(new_model()).parameters()]
    check_ddp(rank, expected, initial)
    for reshard_after_forward in (True, False):
        check_fsdp(rank, expected, initial, reshard_after_forward)
    check_fsdp_of_fused_modules(rank)
    check_fsdp_of_experts(rank)
    check_conversion_comes_first()
    torch.distributed.destroy_process_group()
    print("all is well")


if __name__ == "__main__":
    main()
