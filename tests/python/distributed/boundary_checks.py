"""Layers of a group of ranks beside the same layer in one process: what the ranks run."""

import torch
from octofold._core.recipe import NAMED
from octofold._ranks import ranks_of
from octofold._ranks.wire import largest
from octofold.distributed.tensor_parallel.boundary import Split
from octofold.nn.autograd.boundary import ONE_PROCESS, Sides
from octofold.nn.autograd.linear import linear_with_casts
from octofold.nn.casting.casts import cast_weight

from tests.python.distributed.rank_processes import here

STATELESS = [name for name, recipe in NAMED.items() if not recipe.keeps_state]


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


def layer(x, weight, bias, recipe, sides=None):
    casts = cast_weight(weight, recipe, True, True)
    return linear_with_casts(x, weight, bias, recipe, casts, sides=sides)


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def whole(name, shape, dy_seed=3):
    """Result and gradients in one process."""
    x, weight, bias = (leaf(t) for t in operands(shape))
    y = layer(x, weight, bias, NAMED[name])
    y.backward(numbers(*y.shape, seed=dy_seed))
    return y.detach(), x.grad, weight.grad, bias.grad


def operands(shape):
    return numbers(*shape, 512, seed=1), numbers(512, 512, seed=2) / 16, numbers(512, seed=4)


def part(tensor, rank, size, dim):
    return tensor.chunk(size, dim)[rank].contiguous()


def column_parallel(rank, name, shape, dim):
    """x split over tokens, the weight over its rows. Forward and the weight's gradient have the
    bits of one process; that by x sums over ranks."""
    ranks = ranks_of("test", "group", None)
    y, dx, dw, db = whole(name, shape)
    x, weight, bias = operands(shape)
    boundary = Split("test", ranks, dim, torch.float32)
    own_x, own_weight = (
        leaf(part(x, rank, ranks.size, dim)),
        leaf(part(weight, rank, ranks.size, 0)),
    )
    own_bias = leaf(part(bias, rank, ranks.size, 0))
    recipe = NAMED[name]
    high = recipe.grad_weight is None
    agreed = name != "tensorwise"  # the weight's scale, and dY's, are a part's own
    own_y = layer(own_x, own_weight, own_bias, recipe, Sides(boundary, ONE_PROCESS))
    wanted = part(y, rank, ranks.size, -1)
    own_y.backward(part(numbers(*y.shape, seed=3), rank, ranks.size, -1))
    require(own_y, wanted, agreed)
    # The rows of dY have a scale each where it is rowwise: of all features, in one process.
    # torch's product in high precision may sum in another order, for a part.
    require(own_weight.grad, part(dw, rank, ranks.size, 0), agreed and not high)
    require(own_bias.grad, part(db, rank, ranks.size, 0), True)
    require(own_x.grad, part(dx, rank, ranks.size, dim), False)


def row_parallel(rank, name, shape, dim):
    """x and the weight split over features, y over tokens."""
    ranks = ranks_of("test", "group", None)
    y, dx, dw, db = whole(name, shape)
    x, weight, bias = operands(shape)
    boundary = Split("test", ranks, dim, torch.float32)
    own_x, own_weight = leaf(part(x, rank, ranks.size, -1)), leaf(part(weight, rank, ranks.size, 1))
    own_bias = leaf(bias)
    own_y = layer(own_x, own_weight, own_bias, NAMED[name], Sides(ONE_PROCESS, boundary))
    own_y.backward(part(numbers(*y.shape, seed=3), rank, ranks.size, dim))
    require(own_y, part(y, rank, ranks.size, dim), False)
    agreed = name in ("blockwise", "rowwise")
    require(own_weight.grad, part(dw, rank, ranks.size, 1), agreed)
    require(own_x.grad, part(dx, rank, ranks.size, -1), name == "blockwise")
    require(own_bias.grad, db, False)


def require(actual, wanted, same_bits):
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    if same_bits:
        assert torch.equal(actual, wanted), (actual - wanted).abs().max()
    error = (actual - wanted).float().norm() / wanted.float().norm()
    assert error < 0.12, error


def largest_compiled(rank):
    """By inductor: of numbers that are computed, with a NaN and both zeros."""
    group = ranks_of("test", "group", None)
    x = here(torch.tensor([[1.0, -3.0, float("nan"), -0.0], [2.0, -2.0, 5.0, 0.0]])[rank])

    def function(x):
        return largest("test", x * 2, group)

    expected = here(torch.tensor([4.0, 6.0, float("nan"), 0.0]))
    for call in (function, torch.compile(function, fullgraph=True)):
        assert torch.equal(call(x).nan_to_num(-1), expected.nan_to_num(-1))
