"""A layer that is split over ranks beside the same layer in one process, for tests that run on the
ranks."""

import copy

import octofold
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.rank_processes import DEVICE, here

nn = octofold.nn
MESHES = {}
ALL = Replicate(), Replicate()


def full_tensor(tensor):
    """All of a DTensor. full_tensor() of torch 2.11 knows no packed rows: they are gathered here,
    each dimension of the mesh after those that split its parts further."""
    try:
        return tensor.full_tensor()
    except ValueError:
        mesh, whole = tensor.device_mesh, tensor.to_local().contiguous()
        for along, placement in reversed(list(enumerate(tensor.placements))):
            if placement.is_replicate():
                continue
            parts = [torch.empty_like(whole) for _ in range(mesh.size(along))]
            torch.distributed.all_gather(parts, whole, mesh.get_group(along))
            factor, dim = getattr(placement, "split_factor", 1), placement.dim
            pieces = zip(*(part.chunk(factor, dim) for part in parts), strict=True)
            whole = torch.cat([piece for of_ranks in pieces for piece in of_ranks], dim)
        return whole


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return here(torch.randn(shape, generator=generator).bfloat16())


# Layouts of tokens outside, by a word for tests.
LAYOUTS = {"all": Replicate(), "dim 0": Shard(0), "dim 1": Shard(1)}


def mesh_of_all():
    size = torch.distributed.get_world_size()
    if size not in MESHES:
        MESHES[size] = init_device_mesh(DEVICE, (size,), mesh_dim_names=("tp",))
    return MESHES[size]


def seeded(make, *arguments, **options):
    """Parallel layers always use FP8: the one beside them has to, on GPUs where BF16 is faster."""
    if make in (nn.Linear, nn.NormLinear, nn.MLP):
        options.setdefault("force_fp8", True)
    torch.manual_seed(5)
    return here(make(*arguments, **options))


def own(tensor, layout):
    """The part of a tensor that this rank has."""
    if isinstance(layout, Replicate):
        return tensor.detach().clone()
    mesh = mesh_of_all()
    return part(tensor.detach(), mesh.get_local_rank(), mesh.size(), layout.dim)


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def beside(module, style, inputs, layouts=ALL, bits=(), **options):
    """Runs a module in one process, and made parallel. inputs: by name, those of forward; layouts:
    of inputs and of the result; bits: names of what has the bits of one process: "y", inputs and
    parameters. A GPU divides K of products of few tiles, by their sizes, unless it must not."""
    octofold.set_batch_invariant(DEVICE == "cuda")
    module.zero_grad()
    parallel = parallelize_module(copy.deepcopy(module), mesh_of_all(), style, **options)
    given, gives = layouts
    whole = {k: leaf(v) if v.is_floating_point() else v for k, v in inputs.items()}
    mine = {
        k: leaf(own(v, given)) if v.is_floating_point() else own(v, given)
        for k, v in inputs.items()
    }
    y, own_y = module(**whole), parallel(**mine)
    if isinstance(y, tuple):
        (y, total), (own_y, own_total) = y, own_y
        require("total", own_total, own(total, given), True)
        (total * 0.5).sum().backward(retain_graph=True)
        (own_total * 0.5).sum().backward(retain_graph=True)
    dy = numbers(*y.shape, seed=8).to(y.dtype)
    y.backward(dy)
    own_y.backward(own(dy, gives))
    require("y", own_y, own(y, gives), "y" in bits)
    for name, x in whole.items():
        if x.requires_grad:
            require(name, mine[name].grad, own(x.grad, given), name in bits)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            found = dict(parallel.named_parameters())[name]
            assert isinstance(found, DTensor)
            require(name, full_tensor(found), parameter, True)
            require(name, full_tensor(found.grad), parameter.grad, name in bits)
    octofold.set_batch_invariant(False)
    return parallel


def require(name, actual, wanted, same_bits):
    assert actual.shape == wanted.shape, (name, actual.shape, wanted.shape)
    assert actual.dtype == wanted.dtype, (name, actual.dtype, wanted.dtype)
    if same_bits:
        assert torch.equal(actual, wanted), (name, (actual - wanted).abs().max())
    error = (actual - wanted).float().norm() / wanted.float().norm().clamp_min(1e-20)
    assert error < (0.003 if same_bits else 0.12), (name, error)


def part(tensor, rank, size, dim):
    return tensor.chunk(size, dim)[rank].contiguous()


def routed(hidden, tokens=128):
    scores = numbers(tokens, 4, seed=3).float()
    weights, ids = scores.softmax(-1).topk(2, dim=-1)
    x = numbers(tokens, hidden, seed=1)
    return {"input": x, "topk_ids": ids.int(), "topk_weights": weights}


class Attention(torch.nn.Module):
    """Three projections of one x, and one of what is made of them."""

    def __init__(self, recipe):
        super().__init__()
        options = {"recipe": recipe, "dtype": torch.bfloat16, "bias": False, "force_fp8": True}
        for name, features in (("q", 512), ("k", 256), ("v", 256)):
            setattr(self, name, nn.Linear(512, features, **options))
        self.o = nn.Linear(512, 512, **options)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o(q * torch.cat([k, v], dim=-1).sigmoid())
