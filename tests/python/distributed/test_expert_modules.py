"""Modules whose experts are spread over ranks, beside the same modules in one process."""

import copy
from functools import partial

import octofold
import pytest
import torch
import torch.distributed.checkpoint as dcp
from octofold.distributed import (
    ExpertParallel,
    ExpertTensorParallel,
    ParallelExperts,
    experts,
    parallelize_experts,
)
from octofold.nn.layers.saving import coded_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tests.python.distributed.expert_problems import (
    BF16,
    EXPERTS,
    HIDDEN,
    INNER,
    compare,
    error,
    in_fp8,
    leaf,
    problem,
    refused,
    step,
)
from tests.python.distributed.rank_processes import on_ranks, on_two_ranks

nn = octofold.nn


def mesh_of():
    return init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("ep",))


def block(shared=64, bias=False, **options):
    torch.manual_seed(3)
    sizes = (HIDDEN, INNER, EXPERTS, 2, shared)
    return nn.MixtureOfExperts(*sizes, bias=bias, dtype=BF16, **options)


def tokens_of(rank, count=20):
    g = torch.Generator().manual_seed(5 + rank)
    return [torch.randn((count + rank, HIDDEN), generator=g).to(BF16) for _ in range(2)]


def run(module, x, dy):
    x = leaf(x)
    y = module(x)
    y.backward(dy)
    return y.detach(), x.grad


@pytest.mark.parametrize(
    ("group", "style", "options"),
    [
        ("mesh", False, {}),
        ("mesh", True, {"capacity": 64}),
        ("processes", False, {"wire": "input", "halves": 2}),
    ],
)
@on_ranks
def test_mixture_of_experts(rank, group, style, options):
    """A block beside itself in one process, which sees all ranks' tokens."""
    size = torch.distributed.get_world_size()
    whole, own = block(bias=True), block(bias=True)
    names = list(own.state_dict())
    where = mesh_of()["ep"] if group == "mesh" else None
    if style:
        parallelize_module(own, where, {"experts": ExpertParallel(**options)})
    else:
        assert parallelize_experts(own, where, **options) is own
    assert list(own.state_dict()) == names
    assert type(own.experts) is ParallelExperts
    assert "experts=8" in repr(own.experts)
    everyone = [tokens_of(r) for r in range(size)]
    lengths = [len(x) for x, _ in everyone]
    y, dx = run(whole, *(torch.cat(parts) for parts in zip(*everyone, strict=True)))
    own_y, own_dx = run(own, *everyone[rank])
    compare([own_y, own_dx], [t.split(lengths)[rank] for t in (y, dx)], [False] * 2, 0.06)
    assert error(own_y, y.split(lengths)[rank]) < 0.005
    for name, parameter in own.experts.named_parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        of_whole = getattr(whole.experts, name)
        assert parameter.shape == of_whole.shape
        mine = of_whole.grad.chunk(size)[rank]
        assert error(parameter.grad.to_local(), mine) < 0.06, name
    for name, parameter in own.named_parameters():
        if "gate." in name or "shared" in name:  # of which each rank has its tokens' part
            torch.distributed.all_reduce(parameter.grad)
            assert error(parameter.grad, whole.get_parameter(name).grad) < 0.06, name
    # By docs/distributed/experts.md, parameters of both kinds are in no list together.
    kinds = list(own.experts.parameters()), [p for p in own.parameters() if type(p) is Parameter]
    of_experts, of_others = (get_total_norm([p.grad for p in kind]) for kind in kinds)
    norm = (of_experts.full_tensor() ** 2 + of_others**2).sqrt()
    assert norm.item() == pytest.approx(
        get_total_norm([p.grad for p in whole.parameters()]).item(), rel=0.06
    )
    for kind in kinds:
        clip_grads_with_norm_(kind, norm / 2, norm)
    assert get_total_norm([p.grad for p in kinds[0]]).item() == pytest.approx(of_experts.item() / 2)
    for how in ("foreach", "fused"):
        torch.optim.AdamW([{"params": kind} for kind in kinds], **{how: True}).step()
    own.zero_grad()
    with torch.no_grad():
        assert not torch.equal(own(everyone[rank][0]), own_y)


@on_ranks
def test_fp8_module(rank):
    """Codes and scales are sharded as numbers are."""
    p = problem([24] * torch.distributed.get_world_size())
    own, rows, experts_ = p.part(rank)
    whole = nn.Experts.from_weights(in_fp8(p.w13), in_fp8(p.w2))
    module = parallelize_experts(copy.deepcopy(whole), mesh_of()).to(torch.float16)
    part = module.gate_up_proj.to_local()
    assert part.dtype == torch.float16
    assert part.codes.shape[0] == part.scale.shape[0] == experts_.stop - experts_.start
    assert f"gate_up_proj={part}" in repr(module)
    with nn.wide_state_dict(module):
        numbers = module.state_dict()["gate_up_proj"]
    assert torch.equal(numbers.full_tensor(), whole.gate_up_proj.dequantize(torch.float16))
    with coded_state_dict(module):
        refused(module.state_dict, "'model': expected weights that are whole", "'gate_up_proj'")
    with torch.no_grad():
        actual = module(own.x, own.ids, own.weights)
        assert error(actual, whole(p.x, p.ids, p.weights)[rows]) < 0.004
    again = parallelize_experts(copy.deepcopy(whole), mesh_of())
    again.gate_up_proj.to_local().zero_()
    again.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.equal(again(own.x, own.ids, own.weights), actual)


def save(rank, folder, fp8):
    module = _for_checkpoint(fp8, 1)
    parallelize_experts(module, mesh_of())
    dcp.save({"model": module.state_dict()}, checkpoint_id=folder)


def load(rank, folder, fp8, whole):
    """By as many ranks as there are, or into a module that is whole on each."""
    module, wanted = _for_checkpoint(fp8, 2), _for_checkpoint(fp8, 1)
    if not whole:
        parallelize_experts(module, mesh_of())
    state = {"model": module.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    module.load_state_dict(state["model"])
    for name, tensor in module.state_dict().items():
        other = wanted.state_dict()[name]
        if isinstance(tensor, DTensor):
            tensor, other = tensor.to_local(), other.chunk(torch.distributed.get_world_size())[rank]
        assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), name


def _for_checkpoint(fp8, seed):
    torch.manual_seed(seed)
    module = nn.Experts(HIDDEN, INNER, EXPERTS, bias=not fp8, dtype=BF16)
    if not fp8:
        return module
    return nn.Experts.from_weights(in_fp8(module.gate_up_proj), in_fp8(module.down_proj))


@pytest.mark.parametrize("fp8", [False, True])
def test_checkpoints_of_two_ranks(tmp_path_factory, processes, fp8):
    """Saved by two, loaded by two, four or one each."""
    folder = tmp_path_factory.getbasetemp() / f"experts-{fp8}"
    if processes.size == 2:
        processes.run(save, str(folder), fp8)
    if folder.exists():  # where only tests of four processes run there is none
        processes.run(load, str(folder), fp8, False)
        processes.run(load, str(folder), fp8, True)


@on_ranks
def test_what_cannot_be_spread(rank):
    size = torch.distributed.get_world_size()
    odd = nn.Experts(HIDDEN, INNER, size + 1)
    name = "octofold.distributed.parallelize_experts"
    refused(lambda: parallelize_experts(odd), name, f"that {size} ranks divide", f"rank {rank} of")
    assert type(odd) is nn.Experts
    adding = nn.Experts(HIDDEN, INNER, EXPERTS, main_grad=True)
    refused(lambda: parallelize_experts(adding), name, "main_grad")
    refused(lambda: parallelize_experts(torch.nn.Linear(2, 2)), name, "model")
    once = parallelize_experts(nn.Experts(HIDDEN, INNER, EXPERTS, device="meta"))
    assert once.gate_up_proj.is_meta
    refused(lambda: parallelize_experts(once), name, "not spread yet")
    for options in ({"wire": "bf16"}, {"capacity": 0}, {"local_rows": 3}, {"halves": 3}):
        refused(lambda o=options: parallelize_experts(odd, **o), name, *options)
    p, *_ = problem([4] * size).part(rank)
    run = (p.x, p.ids, p.weights, p.w13, p.w2)
    refused(lambda: experts(*run, recipe="rowwise_with_gw_hp"), "recipe", "in FP8")
    cut = parallelize_module(nn.Experts(HIDDEN, INNER, 4), mesh_of(), ExpertTensorParallel())
    for module in (once, cut):
        call = partial(module, *run[:3], adapters={"down_proj": ()})
        refused(call, "'adapters'", "none over several ranks")


@pytest.mark.slow
@on_two_ranks
def test_compiles_with_a_capacity(rank):
    """With a capacity all of it is one graph."""
    p, *_ = problem([24, 24]).part(rank)
    eager = step(experts, p, capacity=64)

    def layer(*arguments, **options):
        return experts(*arguments, capacity=64, **options)

    torch._dynamo.reset()
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    compare(step(fast, p), eager, [True] * 5, 0)
    module = parallelize_experts(nn.Experts(HIDDEN, INNER, EXPERTS, dtype=BF16), capacity=64)
    whole = torch.compile(module, backend="aot_eager", fullgraph=True)
    arguments = p.x, p.ids, p.weights
    assert torch.equal(whole(*arguments), module(*arguments))


@on_ranks
def test_under_fsdp(rank):
    """Spread over one dimension of a mesh and sharded by FSDP2 over the other: the same result and
    gradients as spread alone, where those of experts are averages over the other dimension."""
    size = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "ep"))
    x, dy = tokens_of(rank)
    plain, own = block(shared=None), block(shared=None)
    parallelize_experts(plain, mesh["ep"])
    parallelize_experts(own, mesh["ep"])
    fully_shard(own.experts, mesh=mesh["dp"])
    y, dx = run(plain, x, dy)
    own_y, own_dx = run(own, x, dy)
    compare([own_y, own_dx], [y, dx], [True, True], 0)
    for name, parameter in own.experts.named_parameters():
        wanted = getattr(plain.experts, name).grad.to_local().float()
        torch.distributed.all_reduce(wanted, group=mesh["dp"].get_group())
        mine = (wanted / 2).chunk(2)[mesh["dp"].get_local_rank()]
        assert parameter.shape == getattr(plain.experts, name).shape
        assert error(parameter.grad.to_local(), mine) < 0.01, name
    torch.optim.SGD(own.parameters(), lr=0.1).step()
    run(own, x, dy)
