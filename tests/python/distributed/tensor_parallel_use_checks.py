"""Parallel layers with the rest of torch, and what they refuse: what the ranks run."""

import copy
import re
import time

import octofold
import pytest
import torch
from octofold.distributed import (
    ColumnParallel,
    ExpertTensorParallel,
    MLPParallel,
    RowParallel,
    SharedInput,
    parallelize_experts,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.python.distributed.boundary_checks import full_tensor, numbers, part
from tests.python.distributed.rank_processes import DEVICE, each_call_waits, here
from tests.python.distributed.tensor_parallel_checks import (
    Attention,
    leaf,
    mesh_of_all,
    require,
    routed,
    seeded,
)

nn = octofold.nn


class Block(torch.nn.Module):
    """A model's block with parallel layers and others around them: a norm, a projection, an MLP."""

    def __init__(self, recipe="blockwise"):
        super().__init__()
        options = {"recipe": recipe, "dtype": torch.bfloat16, "force_fp8": True}
        self.first = nn.NormLinear(256, 512, **options)
        self.second = nn.Linear(512, 256, **options)
        linears = [nn.Linear(*sizes, **options) for sizes in ((256, 256), (256, 256), (256, 256))]
        self.mlp = nn.MLP.from_linears(*linears, force_fp8=True)

    def forward(self, x):
        return self.mlp(x + self.second(self.first(x)))


PLAN = {"first": ColumnParallel(), "second": RowParallel(), "mlp": MLPParallel()}


def copied(model):
    return copy.deepcopy(model)


def with_fsdp(rank):
    """FSDP2 over tensor parallelism: half of the processes by each."""
    from torch.distributed.fsdp import fully_shard

    size = torch.distributed.get_world_size()
    mesh = init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("dp", "tp"))
    block = seeded(Block)
    alone, parallel = copied(block), parallelize_module(copied(block), mesh["tp"], PLAN)
    for module in (parallel.first, parallel.second, parallel.mlp, parallel):
        fully_shard(module, mesh=mesh["dp"])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, parallel)]
    for step in range(2):
        x = numbers(size // 2, 256, 256, seed=step)
        alone(x).float().square().mean().backward()
        mine = x[mesh["dp"].get_local_rank()][None]
        parallel(mine).float().square().mean().backward()
        for (name, wanted), found in zip(
            alone.named_parameters(), parallel.parameters(), strict=True
        ):
            assert found.placements[1:] == PLACEMENTS[name], (name, found.placements)
            require(name, full_tensor(found.grad), wanted.grad, False)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for (name, wanted), found in zip(
            alone.named_parameters(), parallel.parameters(), strict=True
        ):
            require(name, full_tensor(found), wanted, False)


PLACEMENTS = {
    "first.norm.weight": (Replicate(),),
    "first.linear.weight": (Shard(0),),
    "first.linear.bias": (Shard(0),),
    "second.weight": (Shard(1),),
    "second.bias": (Replicate(),),
    "mlp.gate_proj.weight": (Shard(0),),
    "mlp.gate_proj.bias": (Shard(0),),
    "mlp.up_proj.weight": (Shard(0),),
    "mlp.up_proj.bias": (Shard(0),),
    "mlp.down_proj.weight": (Shard(1),),
    "mlp.down_proj.bias": (Replicate(),),
}


def save(rank, folder):
    """Saves the parts of two ranks; of more ranks, each two have all."""
    from torch.distributed import checkpoint

    size = torch.distributed.get_world_size()
    mesh = init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("dp", "tp"))
    parallel = parallelize_module(seeded(Block), mesh["tp"], PLAN)
    checkpoint.save(parallel.state_dict(), checkpoint_id=folder)


def load(rank, folder):
    """On another number of ranks than they were saved on, or in one process."""
    from torch.distributed import checkpoint

    wanted = seeded(Block).state_dict()
    torch.manual_seed(9)
    other = here(Block())
    model = parallelize_module(copied(other), mesh_of_all(), PLAN) if rank is not None else other
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    for name, value in model.state_dict().items():
        whole = full_tensor(value) if isinstance(value, DTensor) else value
        assert torch.equal(whole, wanted[name]), name


def compiled(rank, kind):
    """torch.compile, and activation checkpointing: the same bits."""
    split = Shard(0)
    if kind == "attention":
        plan = {name: ColumnParallel(input_layouts=split) for name in "qkv"}
        plan = {"": SharedInput(), **plan, "o": RowParallel(output_layouts=split)}
        block, features = seeded(Attention, "blockwise"), 512
    else:
        block, features, plan = seeded(Block), 256, PLAN
    block = parallelize_module(block, mesh_of_all(), plan)
    x, dy = numbers(128, features, seed=1), numbers(128, features, seed=2)

    def results(model):
        block.zero_grad()
        mine = leaf(x)
        y = model(mine)
        y.backward(dy)
        return [y, mine.grad, *(p.grad.to_local() for p in block.parameters())]

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    wanted = results(block)
    for model in (checkpointed, torch.compile(block, fullgraph=True, backend="aot_eager")):
        for found, expected in zip(results(model), wanted, strict=True):
            assert torch.equal(found, expected)


def kept_casts(rank):
    """keep_casts() has the results of none."""
    block = parallelize_module(seeded(Block), mesh_of_all(), PLAN)
    x = numbers(128, 256, seed=1)
    wanted = block(x)
    with nn.keep_casts(block):
        assert torch.equal(block(x), wanted)
        assert torch.equal(block(x), wanted)


def disagreement(rank, what):
    """An error on every rank, which names rank and tensor."""
    recipe = "rowwise" if what == "recipe" and rank == 1 else "blockwise"
    layer = seeded(nn.Linear, 256, 256, recipe=recipe, dtype=torch.bfloat16)
    style = ColumnParallel(input_layouts=Shard(0))
    parallel = parallelize_module(layer, mesh_of_all(), style)
    x = numbers(128 if what == "shape" and rank == 1 else 256, 256)
    try:
        parallel(x.half() if what == "dtype" and rank == 1 else x)
    except octofold.InvalidArgumentError as error:
        return str(error)
    return None


def layers_alike(rank, what):
    """Ranks that call layers of the same sizes in another order, or train other weights of one."""
    if what == "experts":
        layers, inputs = [seeded(nn.Experts, 256, 128, 4) for _ in range(2)], routed(256)
        parallelize_experts(torch.nn.ModuleList(layers), mesh_of_all())
    else:
        layers, inputs = [seeded(nn.Linear, 256, 256) for _ in range(2)], {"input": numbers(8, 256)}
        for layer in layers:
            parallelize_module(layer, mesh_of_all(), ColumnParallel(input_layouts=Shard(0)))
    for layer in layers:  # all ranks know both
        layer(**inputs)
    words, called = "'layer': expected the same on all ranks", layers[min(rank, 1)]
    if what == "frozen":
        words, called = "weight, bias on rank 0 and bias on rank 1", layers[0]
        called.weight.requires_grad_(rank == 0)
    with each_call_waits(), refused(words):
        called(**inputs).sum().backward()


def order(rank):
    """Ranks that call other layers."""
    layers = [seeded(nn.Linear, 256, 256), seeded(nn.NormLinear, 256, 256)]
    for layer in layers:
        parallelize_module(layer, mesh_of_all(), ColumnParallel())
    try:
        layers[rank % 2](numbers(32, 256).float())
    except octofold.InvalidArgumentError as error:
        return str(error)
    return None


def refused(words):
    return pytest.raises(octofold.InvalidArgumentError, match=re.escape(words))


def refusals(rank):
    """Errors that are raised before anything is sent."""
    mesh = mesh_of_all()
    size = mesh.size()
    cases = [
        (nn.Linear(16, size - 1), ColumnParallel(), f"each of {size} ranks gets some"),
        (torch.nn.Linear(16, 16), ColumnParallel(), "torch's own ColwiseParallel"),
        (nn.Linear(16, 16, recipe="delayed"), RowParallel(), "'recipe'"),
        (nn.Linear(16, 16, main_grad=True), RowParallel(), "'main_grad'"),
        (nn.Linear(16, 16), MLPParallel(), "an octofold.nn.MLP"),
        (nn.Experts(16, 7, 2), ExpertTensorParallel(), f"a multiple of {size}"),
    ]
    for layer, style, words in cases:
        with refused(words):
            parallelize_module(layer, mesh, style)
    for options, words in (
        ({"input_layouts": Shard(-1)}, "'input_layouts'"),
        ({"reduce_dtype": torch.float16}, "'reduce_dtype'"),
        ({"packed": 2, "output_layouts": Replicate()}, "'output_layouts'"),
    ):
        with refused(words):
            ColumnParallel(**options)
    for style in (ColwiseParallel(), RowwiseParallel()):
        with refused("octofold.distributed.parallelize()"):
            parallelize_module(nn.Linear(16, 16), mesh, style)(torch.randn(3, 16))
    row = parallelize_module(seeded(nn.Linear, 16, 16), mesh, RowParallel(output_layouts=Shard(0)))
    for x, words in (
        (here(torch.randn(size + 1, 16 // size)), f"a multiple of {size} tokens in dimension 0"),
        (here(torch.randn(16 // size)), "tokens with a dimension 0"),
    ):
        with refused(words):
            row(x)
    column = ColumnParallel(input_layouts=Shard(0))
    column = parallelize_module(seeded(nn.Linear, 16, 16), mesh, column)
    short = numbers(size - 1, 16, 16)
    with refused(f"a multiple of {size} tokens in dimension 0"):
        column(DTensor.from_local(short, mesh, [Replicate()], run_check=False))
    with refused("whole in this process"):
        row.to_linear()


def dead_rank(rank):
    """A rank that is gone is an error within the time-out: in the call or, where the host does not
    wait for a GPU, in one of the next."""
    layer = parallelize_module(seeded(nn.Linear, 64, 64), mesh_of_all(), RowParallel())
    x = numbers(32, 64 // torch.distributed.get_world_size()).float()
    layer(x)
    if rank == 1:
        raise SystemExit
    try:
        for _ in range(100):
            layer(x)
            time.sleep(0.1)
    except octofold.UnavailableError as error:
        return str(error)
    return None


def packed_state(rank, kind):
    """gate_up_proj of experts, or of an MLP: whole in a full state_dict(), and under FSDP2."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    size = torch.distributed.get_world_size()
    mesh = init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("dp", "tp"))
    if kind == "experts":
        layer = seeded(nn.Experts, 256, 256, 4, dtype=torch.bfloat16)
        style = ExpertTensorParallel()
    else:
        layer = seeded(nn.MLP, 256, 256, dtype=torch.bfloat16)
        style = MLPParallel()
    parallel = parallelize_module(copied(layer), mesh["tp"], style)
    options = {} if kind == "experts" else {"shard_placement_fn": lambda _: Shard(1)}
    fully_shard(parallel, mesh=mesh["dp"], **options)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (layer, parallel)]
    parts = size // 2
    for _ in range(2):
        inputs = routed(256, 128 * parts)
        if kind != "experts":
            inputs = {"input": inputs["input"]}
        mine = {k: part(v, mesh["dp"].get_local_rank(), parts, 0) for k, v in inputs.items()}
        layer(**inputs).float().square().mean().backward()
        parallel(**mine).float().square().mean().backward()
        for (name, wanted), found in zip(
            layer.named_parameters(), parallel.parameters(), strict=True
        ):
            require(name, full_tensor(found.grad), wanted.grad, False)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    whole = StateDictOptions(full_state_dict=True)
    try:
        state = get_model_state_dict(parallel, options=whole)
    except ValueError:  # torch 2.11, as by full_tensor()
        state = {name: full_tensor(t) for name, t in get_model_state_dict(parallel).items()}
    for name, wanted in layer.state_dict().items():
        if state or rank == 0:
            require(name, state[name], wanted, False)
    if kind == "mlp":
        parallel = parallelize_module(copied(layer), mesh["tp"], MLPParallel())
        with refused("gate and up that are two layers"):
            fully_shard(parallel, mesh=mesh["dp"])
