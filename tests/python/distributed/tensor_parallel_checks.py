"""Parallel layers beside the same layer in one process: what the ranks run."""

import contextlib
import copy

import octofold
import torch
from octofold import ScaledTensor, quantize
from octofold.distributed import (
    ColumnParallel,
    ExpertTensorParallel,
    MLPParallel,
    RowParallel,
    SharedInput,
    Whole,
)
from octofold.distributed.tensor_parallel import shared as shared_casts
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.boundary_checks import STATELESS, full_tensor, numbers, part
from tests.python.distributed.rank_processes import DEVICE, here

nn = octofold.nn
FEATURES = Shard(-1)
EXPERT_RECIPES = [name for name in STATELESS if name != "rowwise_with_gw_hp"]
MESHES = {}
ALL = Replicate(), Replicate()

# Results that have the bits of one process where a weight is split by rows. A scale of all of it is
# another for a part, and torch's product in high precision may sum in another order.
BITS_OF_COLUMNS = {
    "blockwise": ("y", "weight", "bias"),
    "rowwise": ("y", "weight", "bias"),
    "rowwise_with_gw_hp": ("y", "bias"),
}

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


def column_parallel(rank, recipe, layout, reduce_dtype=None, sizes=(512, 512), tokens=(2, 512)):
    layout = LAYOUTS[layout]
    alike = DEVICE == "cpu" or sizes[1] % 128 == 0  # else a GPU may divide K of one of them
    layer = seeded(nn.Linear, *sizes, recipe=recipe, dtype=torch.bfloat16)
    style = ColumnParallel(input_layouts=layout, reduce_dtype=reduce_dtype)
    inputs = {"input": numbers(*tokens, sizes[0], seed=1)}
    bits = BITS_OF_COLUMNS.get(recipe, ()) if alike else ()
    beside(layer, style, inputs, (layout, FEATURES), bits)


def row_parallel(rank, recipe, layout, reduce_dtype=None, sizes=(512, 512), tokens=(2, 512)):
    layout = LAYOUTS[layout]
    layer = seeded(nn.Linear, *sizes, recipe=recipe, dtype=torch.bfloat16)
    style = RowParallel(output_layouts=layout, reduce_dtype=reduce_dtype)
    inputs = {"input": numbers(*tokens, sizes[0], seed=1)}
    bits = ("weight",) if recipe in ("blockwise", "rowwise") else ()
    beside(layer, style, inputs, (FEATURES, layout), bits)


def few_tokens(rank, recipe):
    """One token of each sequence on a rank, and none."""
    size = torch.distributed.get_world_size()
    for tokens in ((3, size), (3, 0), (0, size)):
        column_parallel(rank, recipe, "dim 1", tokens=tokens)
        row_parallel(rank, recipe, "dim 1", tokens=tokens)


def uneven(rank):
    """Features that ranks have unequally, and that straddle blocks of 128."""
    column_parallel(rank, "blockwise", "all", sizes=(256, 330))
    row_parallel(rank, "blockwise", "all", sizes=(330, 256))
    size = torch.distributed.get_world_size()
    layer = seeded(nn.Linear, 256, 330, dtype=torch.bfloat16)
    style = ColumnParallel(output_layouts=Replicate())
    beside(layer, style, {"input": numbers(64, 256)}, (Replicate(), Replicate()), ("y",))
    layer = seeded(nn.Linear, 330, 256, dtype=torch.bfloat16)
    style = RowParallel(input_layouts=Replicate())
    beside(layer, style, {"input": numbers(64, 330)}, (Replicate(), Replicate()))
    assert 330 % (128 * size)


def norm_linear(rank, recipe, layout, norm="rms"):
    layout = LAYOUTS[layout]
    layer = seeded(nn.NormLinear, 512, 512, norm=norm, recipe=recipe, dtype=torch.bfloat16)
    inputs = {"input": numbers(512, 512, seed=1), "residual": numbers(512, 512, seed=2)}
    bits = [name if name == "y" else f"linear.{name}" for name in BITS_OF_COLUMNS.get(recipe, ())]
    style = ColumnParallel(input_layouts=layout)
    beside(layer, style, inputs, (layout, FEATURES), bits)


def mlp(rank, recipe, given, gives, made="packed", norm=None, **options):
    """made: of which layers."""
    features = {"dtype": torch.bfloat16}
    activation = "gelu" if made == "plain" else "swiglu"
    if made == "three":
        linears = [seeded(torch.nn.Linear, 512, 512, True, **features) for _ in range(3)]
        layer = nn.MLP.from_linears(*linears, recipe=recipe, **options)
    else:
        sizes = 512, 512, 256
        options |= {"activation": activation, "norm": norm, "recipe": recipe}
        layer = seeded(nn.MLP, *sizes, True, **options, **features)
    inputs = {"input": numbers(512, 512, seed=1)}
    if norm is not None:
        inputs["residual"] = numbers(512, 512, seed=2)
    layouts = LAYOUTS[given], LAYOUTS[gives]
    style = MLPParallel(input_layouts=layouts[0], output_layouts=layouts[1])
    weights = [name for name, p in layer.named_parameters() if p.dim() == 2]
    beside(layer, style, inputs, layouts, weights if recipe in ("blockwise", "rowwise") else ())


def experts(rank, recipe, given, gives, bias=False, activation="swiglu", inner=256, dtype=None):
    options = {"bias": bias, "activation": activation, "recipe": recipe, "dtype": torch.bfloat16}
    layer = seeded(nn.Experts, 256, inner, 4, **options)
    layouts = LAYOUTS[given], LAYOUTS[gives]
    style = ExpertTensorParallel(
        input_layouts=layouts[0], output_layouts=layouts[1], reduce_dtype=dtype
    )
    whole = inner // torch.distributed.get_world_size() % 128 == 0 or recipe == "rowwise"
    weights = [name for name, p in layer.named_parameters() if p.dim() == 3]
    bits = weights if recipe in ("blockwise", "rowwise") and whole else ()
    beside(layer, style, routed(256), layouts, bits)


def routed(hidden, tokens=128):
    scores = numbers(tokens, 4, seed=3).float()
    weights, ids = scores.softmax(-1).topk(2, dim=-1)
    x = numbers(tokens, hidden, seed=1)
    return {"input": x, "topk_ids": ids.int(), "topk_weights": weights}


def fp8_experts(rank, activation, inner):
    """Parts of the inner features begin in the middle of squares."""
    rows = 2 * inner if activation == "swiglu" else inner
    first, second = numbers(4, rows, 256, seed=4) / 16, numbers(4, 256, inner, seed=5) / 16
    w13, w2 = (stacked(weight) for weight in (first, second))
    biases = numbers(4, rows, seed=6), numbers(4, 256, seed=7)
    layer = nn.Experts.from_weights(w13, w2, *biases, activation=activation)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    beside(layer, ExpertTensorParallel(), routed(256))


def stacked(weights):
    casts = [quantize(weight, "128x128") for weight in weights]
    scale = torch.stack([cast.scale for cast in casts])
    data = torch.stack([cast.data.view(torch.uint8) for cast in casts])
    return ScaledTensor(data.view(torch.float8_e4m3fn), scale, "128x128")


def fp8_weights(rank, kind, sizes, tokens):
    """Layers with FP8 weights, column- and row-parallel, with scales that straddle borders. tokens:
    of each sequence on a rank."""
    linear = seeded(torch.nn.Linear, *sizes, dtype=torch.bfloat16)
    layer = getattr(nn, kind).from_linear(linear)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    inputs = {"input": numbers(2, tokens * mesh_of_all().size(), sizes[0], seed=1)}
    bits = ("y",)
    beside(layer, ColumnParallel(), inputs, (Replicate(), FEATURES), bits)
    beside(layer, RowParallel(), inputs, (FEATURES, Replicate()))
    split = LAYOUTS["dim 1"]
    column = ColumnParallel(input_layouts=split)
    beside(layer, column, inputs, (split, FEATURES), bits)
    row = RowParallel(output_layouts=split, reduce_dtype=torch.float32)
    beside(layer, row, inputs, (FEATURES, split))


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


@contextlib.contextmanager
def casts_kept():
    """The state while the forward of a module of SharedInput runs."""
    shared_casts.enter()
    try:
        yield
    finally:
        shared_casts.leave()


def attention(rank, recipe):
    """The casts of x are made once, and those of another x, or after a write to it, anew."""
    mesh = mesh_of_all()
    split = Shard(1)
    plan = {name: ColumnParallel(input_layouts=split) for name in "qkv"}
    plan |= {"o": RowParallel(output_layouts=split)}
    layer = seeded(Attention, recipe)
    apart = parallelize_module(copy.deepcopy(layer), mesh, plan)
    together = parallelize_module(copy.deepcopy(layer), mesh, {"": SharedInput(), **plan})
    x = own(numbers(2, 512, 512, seed=1), split)
    dy = own(numbers(2, 512, 512, seed=2), split)
    found = []
    for module in (apart, together):
        mine = leaf(x)
        y = module(mine)
        with counted() as casts:
            again = module(mine)
        assert torch.equal(again, y)
        y.backward(dy)
        found.append((y, mine.grad, [p.grad.to_local() for p in module.parameters()], casts[0]))
    (y, dx, grads, alone), (own_y, own_dx, own_grads, once) = found
    assert (alone, once) == (3, 1), (alone, once)
    assert torch.equal(y, own_y)
    assert torch.equal(dx, own_dx)
    for grad, own_grad in zip(grads, own_grads, strict=True):
        assert torch.equal(grad, own_grad)
    with torch.no_grad():
        q = together.q
        with casts_kept():
            first = q(x)
            x.mul_(2)
            second = q(x)
        assert torch.equal(second, q(x))
        assert not torch.equal(first, second)


class counted:  # noqa: N801
    """Counts the casts of Split boundaries."""

    def __enter__(self):
        from octofold.distributed.boundaries import Split

        self._cast, self.casts = Split.cast, [0]

        def cast(boundary, *arguments, **options):
            self.casts[0] += 1
            return self._cast(boundary, *arguments, **options)

        Split.cast = cast
        return self.casts

    def __exit__(self, *_):
        from octofold.distributed.boundaries import Split

        Split.cast = self._cast


def whole_modules(rank):
    """Norms and routers beside parallel layers: gradients of tokens that are split are summed."""
    norm = seeded(torch.nn.LayerNorm, 64)
    split = Shard(0)
    inputs = {"input": numbers(32, 64).float()}
    beside(norm, Whole(), inputs)
    parallel = beside(norm, Whole("sum"), inputs, (split, split))
    assert isinstance(parallel, torch.nn.LayerNorm)
    assert isinstance(parallel.state_dict()["weight"], DTensor)
    torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)


def dtensors(rank):
    """DTensors come in any layout, and go out as they are asked for."""
    mesh = mesh_of_all()
    layer = seeded(nn.Linear, 256, 512, dtype=torch.bfloat16)
    x = numbers(4, 512, 256)
    y = layer(x)
    for layout in LAYOUTS.values():
        for come in (Replicate(), Shard(1), Shard(2)):
            style = ColumnParallel(input_layouts=layout, use_local_output=False)
            parallel = parallelize_module(copy.deepcopy(layer), mesh, style)
            dtensor = DTensor.from_local(own(x, come), mesh, [come], run_check=False)
            result = parallel(dtensor)
            assert result.placements == (Shard(2),)
            assert torch.equal(full_tensor(result), y)
    for layout in LAYOUTS.values():
        style = RowParallel(output_layouts=layout, use_local_output=False)
        parallel = parallelize_module(copy.deepcopy(layer), mesh, style)
        dtensor = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        result = parallel(dtensor)
        assert result.placements == (layout,)
        require("y", full_tensor(result), y, False)
