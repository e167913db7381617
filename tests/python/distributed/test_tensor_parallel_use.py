"""Parallel layers with the rest of torch, and what they refuse."""

import copy
import re
from types import SimpleNamespace

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
from octofold.nn.layers.linear import require_order
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from tests.python.distributed.beside_one_process import (
    Attention,
    full_tensor,
    leaf,
    mesh_of_all,
    numbers,
    part,
    require,
    routed,
    seeded,
)
from tests.python.distributed.rank_processes import (
    DEVICE,
    each_call_waits,
    here,
    on_ranks,
    on_two_ranks,
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


def halves_of_each():
    """FSDP2 over tensor parallelism: half of the ranks by each."""
    size = torch.distributed.get_world_size()
    return init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("dp", "tp"))


OVER_TENSORS = {
    "block": (lambda: seeded(Block), PLAN),
    "experts": (
        lambda: seeded(nn.Experts, 256, 256, 4, dtype=torch.bfloat16),
        ExpertTensorParallel(),
    ),
    "mlp": (lambda: seeded(nn.MLP, 256, 256, dtype=torch.bfloat16), MLPParallel()),
}


@pytest.mark.parametrize("kind", OVER_TENSORS)
@on_ranks
def test_with_fsdp(rank, kind):
    """Trains as in one process, and is whole in a full state_dict(), also where gate and up are
    rows of one weight."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh, (make, plan) = halves_of_each(), OVER_TENSORS[kind]
    layer = make()
    parallel = parallelize_module(copy.deepcopy(layer), mesh["tp"], plan)
    options = {"shard_placement_fn": lambda _: Shard(1)} if kind == "mlp" else {}
    for module in (*(parallel.children() if kind == "block" else ()), parallel):
        fully_shard(module, mesh=mesh["dp"], **options)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (layer, parallel)]
    parts = mesh["dp"].size()
    for _ in range(2):
        inputs = routed(256, 128 * parts)
        if kind != "experts":
            inputs = {"x" if kind == "block" else "input": inputs["input"]}
        mine = {k: part(v, mesh["dp"].get_local_rank(), parts, 0) for k, v in inputs.items()}
        layer(**inputs).float().square().mean().backward()
        parallel(**mine).float().square().mean().backward()
        for (name, wanted), found in zip(
            layer.named_parameters(), parallel.parameters(), strict=True
        ):
            require(name, full_tensor(found.grad), wanted.grad, False)
            if kind == "block":
                assert found.placements[1:] == PLACEMENTS[name], (name, found.placements)
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
        parallel = parallelize_module(copy.deepcopy(layer), mesh["tp"], MLPParallel())
        with refused("gate and up that are two layers"):
            fully_shard(parallel, mesh=mesh["dp"])


def save(rank, folder):
    """Saves the parts of two ranks; of more ranks, each two have all."""
    from torch.distributed import checkpoint

    parallel = parallelize_module(seeded(Block), halves_of_each()["tp"], PLAN)
    checkpoint.save(parallel.state_dict(), checkpoint_id=folder)


def load(rank, folder):
    """On another number of ranks than they were saved on, or in one process."""
    from torch.distributed import checkpoint

    wanted = seeded(Block).state_dict()
    torch.manual_seed(9)
    other = here(Block())
    model = (
        parallelize_module(copy.deepcopy(other), mesh_of_all(), PLAN) if rank is not None else other
    )
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    for name, value in model.state_dict().items():
        whole = full_tensor(value) if isinstance(value, DTensor) else value
        assert torch.equal(whole, wanted[name]), name


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoint(processes, tmp_path):
    processes.run(save, str(tmp_path))
    processes.run(load, str(tmp_path))
    load(None, str(tmp_path))


@pytest.mark.parametrize("kind", ["block", "attention"])
@on_two_ranks
def test_compiled(rank, kind):
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


@on_two_ranks
def test_kept_casts(rank):
    """keep_casts() has the results of none."""
    block = parallelize_module(seeded(Block), mesh_of_all(), PLAN)
    x = numbers(128, 256, seed=1)
    wanted = block(x)
    with nn.keep_casts(block):
        assert torch.equal(block(x), wanted)
        assert torch.equal(block(x), wanted)


@pytest.mark.parametrize("what", ["shape", "dtype", "recipe"])
@on_ranks
def test_ranks_that_disagree(rank, what):
    """An error on every rank, which names rank and tensor."""
    recipe = "rowwise" if what == "recipe" and rank == 1 else "blockwise"
    layer = seeded(nn.Linear, 256, 256, recipe=recipe, dtype=torch.bfloat16)
    parallel = parallelize_module(layer, mesh_of_all(), ColumnParallel(input_layouts=Shard(0)))
    x = numbers(128 if what == "shape" and rank == 1 else 256, 256)
    words = (
        rf"expected the same on all ranks.*on rank 1.*this is rank {rank} of {mesh_of_all().size()}"
    )
    with pytest.raises(octofold.InvalidArgumentError, match=words):
        parallel(x.half() if what == "dtype" and rank == 1 else x)


@pytest.mark.parametrize("what", ["linear", "frozen", "experts"])
@on_ranks
def test_ranks_that_take_one_layer_for_another(rank, what):
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


def refused(words):
    return pytest.raises(octofold.InvalidArgumentError, match=re.escape(words))


@on_ranks
def test_refusals(rank):
    """Errors that are raised before anything is sent."""
    mesh = mesh_of_all()
    size = mesh.size()
    cases = [
        (nn.Linear(16, size - 1), ColumnParallel(), f"each of {size} ranks gets some"),
        (torch.nn.Linear(16, 16), ColumnParallel(), "torch's own ColwiseParallel"),
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
