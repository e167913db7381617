"""Layers of a group of ranks beside the same layers in one process."""

import copy
from unittest.mock import patch

import octofold
import pytest
import torch
from octofold._ranks import ranks_of
from octofold._ranks.wire import largest
from octofold.distributed import (
    ColumnParallel,
    ExpertTensorParallel,
    MLPParallel,
    RowParallel,
    SharedInput,
    Whole,
)
from octofold.distributed.tensor_parallel import boundary as shared_casts
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.python.distributed.beside_one_process import (
    LAYOUTS,
    Attention,
    beside,
    full_tensor,
    leaf,
    mesh_of_all,
    numbers,
    own,
    require,
    routed,
    seeded,
)
from tests.python.distributed.expert_problems import in_fp8
from tests.python.distributed.rank_processes import DEVICE, here, on_ranks, on_two_ranks

nn = octofold.nn
FEATURES = Shard(-1)
# Results that have the bits of one process where a weight is split by rows. A scale of all of it is
# another for a part, and torch's product in high precision may sum in another order.
BITS_OF_COLUMNS = {
    "blockwise": ("y", "weight", "bias"),
    "rowwise": ("y", "weight", "bias"),
    "rowwise_with_gw_hp": ("y", "bias"),
    "tensorwise": ("bias",),
}


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
    bits = {"blockwise": ("weight", "input"), "rowwise": ("weight",)}.get(recipe, ())
    beside(layer, style, inputs, (FEATURES, layout), bits)


@pytest.mark.parametrize(
    ("layout", "tokens", "reduce_dtype"),
    [("all", (2, 512), None), ("dim 1", (2, 512), None), ("dim 0", (512,), torch.float32)],
)
@pytest.mark.parametrize("recipe", nn.recipes.NAMED)
@on_ranks
def test_linear(rank, recipe, layout, tokens, reduce_dtype):
    column_parallel(rank, recipe, layout, reduce_dtype, tokens=tokens)
    row_parallel(rank, recipe, layout, reduce_dtype, tokens=tokens)


@pytest.mark.parametrize("recipe", nn.recipes.NAMED)
@on_ranks
def test_few_tokens(rank, recipe):
    """No whole square of them on a rank, one token of each sequence, and none."""
    for call in (column_parallel, row_parallel):
        call(rank, recipe, "dim 0", torch.float32, tokens=(20,))
    size = torch.distributed.get_world_size()
    for tokens in ((3, size), (3, 0), (0, size)):
        column_parallel(rank, recipe, "dim 1", tokens=tokens)
        row_parallel(rank, recipe, "dim 1", tokens=tokens)


@on_ranks
def test_uneven_features(rank):
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


@pytest.mark.parametrize("layout", ["all", "dim 0"])
@pytest.mark.parametrize("recipe", nn.recipes.NAMED)
@on_two_ranks
def test_norm_linear(rank, recipe, layout):
    layout = LAYOUTS[layout]
    layer = seeded(nn.NormLinear, 512, 512, norm="rms", recipe=recipe, dtype=torch.bfloat16)
    inputs = {"input": numbers(512, 512, seed=1), "residual": numbers(512, 512, seed=2)}
    bits = [name if name == "y" else f"linear.{name}" for name in BITS_OF_COLUMNS.get(recipe, ())]
    style = ColumnParallel(input_layouts=layout)
    beside(layer, style, inputs, (layout, FEATURES), bits)


def mlp(recipe, given, gives, made="packed", norm=None):
    """made: of which layers."""
    features = {"dtype": torch.bfloat16}
    activation = "gelu" if made == "plain" else "swiglu"
    if made == "three":
        linears = [seeded(torch.nn.Linear, 512, 512, True, **features) for _ in range(3)]
        layer = nn.MLP.from_linears(*linears, recipe=recipe)
    else:
        options = {"activation": activation, "norm": norm, "recipe": recipe}
        layer = seeded(nn.MLP, 512, 512, 256, True, **options, **features)
    inputs = {"input": numbers(512, 512, seed=1)}
    if norm is not None:
        inputs["residual"] = numbers(512, 512, seed=2)
    layouts = LAYOUTS[given], LAYOUTS[gives]
    style = MLPParallel(input_layouts=layouts[0], output_layouts=layouts[1])
    weights = [name for name, p in layer.named_parameters() if p.dim() == 2]
    beside(layer, style, inputs, layouts, weights if recipe in ("blockwise", "rowwise") else ())


@pytest.mark.parametrize("recipe", nn.recipes.NAMED)
@on_ranks
def test_mlp(rank, recipe):
    mlp(recipe, "all", "all")
    mlp(recipe, "dim 0", "dim 0", "three")
    mlp(recipe, "dim 0", "all", "packed", "rms")
    mlp(recipe, "all", "dim 0", "plain")


def experts(recipe, given, gives, bias=False, activation="swiglu", inner=256):
    options = {"bias": bias, "activation": activation, "recipe": recipe, "dtype": torch.bfloat16}
    layer = seeded(nn.Experts, 256, inner, 4, **options)
    layouts = LAYOUTS[given], LAYOUTS[gives]
    style = ExpertTensorParallel(input_layouts=layouts[0], output_layouts=layouts[1])
    whole = inner // torch.distributed.get_world_size() % 128 == 0 or recipe == "rowwise"
    weights = [name for name, p in layer.named_parameters() if p.dim() == 3]
    bits = weights if recipe in ("blockwise", "rowwise") and whole else ()
    beside(layer, style, routed(256), layouts, bits)


EXPERT_RECIPES = [name for name in nn.recipes.NAMED if name != "rowwise_with_gw_hp"]


@pytest.mark.parametrize("recipe", EXPERT_RECIPES)
@on_ranks
def test_experts(rank, recipe):
    experts(recipe, "all", "all")
    experts(recipe, "dim 0", "dim 0", True)
    experts(recipe, "dim 0", "all", True, "gelu", 192)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
@on_ranks
def test_experts_in_fp8(rank, activation):
    """Parts of the inner features begin in the middle of squares."""
    inner = 384
    rows = 2 * inner if activation == "swiglu" else inner
    first, second = numbers(4, rows, 256, seed=4) / 16, numbers(4, 256, inner, seed=5) / 16
    biases = numbers(4, rows, seed=6), numbers(4, 256, seed=7)
    layer = nn.Experts.from_weights(in_fp8(first), in_fp8(second), *biases, activation=activation)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    beside(layer, ExpertTensorParallel(), routed(256))


@pytest.mark.parametrize(("sizes", "tokens"), [((768, 512), 32), ((264, 300), 1)])
@pytest.mark.parametrize("kind", ["inference_linear", "weight_only_linear"])
@on_ranks
def test_fp8_weights(rank, kind, sizes, tokens):
    """Layers with FP8 weights, column- and row-parallel, with scales that straddle borders. tokens:
    of each sequence on a rank."""
    linear = seeded(torch.nn.Linear, *sizes, dtype=torch.bfloat16)
    layer = getattr(nn, kind)(linear)
    inputs = {"input": numbers(2, tokens * mesh_of_all().size(), sizes[0], seed=1)}
    bits = ("y",)
    beside(layer, ColumnParallel(), inputs, (Replicate(), FEATURES), bits)
    beside(layer, RowParallel(), inputs, (FEATURES, Replicate()))
    split = LAYOUTS["dim 1"]
    column = ColumnParallel(input_layouts=split)
    beside(layer, column, inputs, (split, FEATURES), bits)
    row = RowParallel(output_layouts=split, reduce_dtype=torch.float32)
    beside(layer, row, inputs, (FEATURES, split))


@pytest.mark.parametrize("recipe", nn.recipes.NAMED)
@on_ranks
def test_attention(rank, recipe):
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
        split_cast = shared_casts.Split.cast
        with patch.object(
            shared_casts.Split, "cast", autospec=True, side_effect=split_cast
        ) as cast:
            again = module(mine)
        assert torch.equal(again, y)
        y.backward(dy)
        found.append(
            (y, mine.grad, [p.grad.to_local() for p in module.parameters()], cast.call_count)
        )
    (y, dx, grads, alone), (own_y, own_dx, own_grads, once) = found
    assert (alone, once) == (3, 1), (alone, once)
    assert torch.equal(y, own_y)
    assert torch.equal(dx, own_dx)
    for grad, own_grad in zip(grads, own_grads, strict=True):
        assert torch.equal(grad, own_grad)
    with torch.no_grad():
        q = together.q
        shared_casts.open_shared_casts()  # as while the forward of a module of SharedInput runs
        first = q(x)
        x.mul_(2)
        second = q(x)
        shared_casts.close_shared_casts()
        assert torch.equal(second, q(x))
        assert not torch.equal(first, second)


@on_two_ranks
def test_whole_modules(rank):
    """Norms and routers beside parallel layers: gradients of tokens that are split are summed."""
    norm = seeded(torch.nn.LayerNorm, 64)
    split = Shard(0)
    inputs = {"input": numbers(32, 64).float()}
    beside(norm, Whole(), inputs)
    parallel = beside(norm, Whole("sum"), inputs, (split, split))
    assert isinstance(parallel, torch.nn.LayerNorm)
    assert isinstance(parallel.state_dict()["weight"], DTensor)
    torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)


@on_ranks
def test_dtensors(rank):
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


@pytest.mark.slow
@on_two_ranks
def test_largest_magnitudes_compile(rank):
    """By inductor: of numbers that are computed, with a NaN and both zeros."""
    group = ranks_of("test", "group", None)
    x = here(torch.tensor([[1.0, -3.0, float("nan"), -0.0], [2.0, -2.0, 5.0, 0.0]])[rank])

    def function(x):
        return largest("test", x * 2, group)

    expected = here(torch.tensor([4.0, 6.0, float("nan"), 0.0]))
    for call in (function, torch.compile(function, fullgraph=True)):
        assert torch.equal(call(x).nan_to_num(-1), expected.nan_to_num(-1))
