"""Casts of stacks of matrices on the GPU: only those that offsets say are used, whatever the
offsets are, and products of them."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    ON_GPU,
    Surrounded,
    bits,
    needs,
    needs_gpu,
    normal,
    torch,
)
from tests.python.casting import GRANULARITIES, cast_side


def cast(x, kind, matrices=None, **options):
    """The casts of rows and of transposes, each only if `kind` has its granularity."""
    rows, transposed = (
        None if unit is None else octofold.Format(granularity=unit, **options) for unit in kind
    )
    return octofold.ops.cast(x, rows=rows, transposed=transposed, matrices=matrices)[:2]


# The last two are such as no sort has made.
USED = (
    [0, 4, 4, 5, 5, 5],
    [0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 1],
    [0, 1, 2, 3, 4, 5],
    *([[2**31 - 1, -(2**31), 7, 7, -3, 0], [-5, 9, 2**30, 3, 3, -1]] if ON_GPU else []),
)


@pytest.mark.parametrize("transpose", [False, True], ids=["rows", "both"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_matrices_that_are_not_used_are_left_alone(granularity, transpose, generator):
    """In the midst of poison, which stays there; whatever the offsets are."""
    for (rows, cols), offsets in itertools.product(((136, 272), (131, 77), (8, 5000)), USED):
        x = normal(generator, 5, rows, cols, dtype="bfloat16")
        used = octofold.Rows(torch.tensor(offsets, dtype=torch.int32, device=DEVICE))
        targets, memories, alone = {}, [], {}
        shapes = {"rows": (5, rows, cols), "transposed": (5, cols, rows)}
        for name in ("rows", "transposed")[: 1 + transpose]:
            shape = shapes[name]
            data = Surrounded(5 * shape[1], shape[2], torch.float8_e4m3fn, 3, 1)
            of_scales = octofold.ops.scale_shape(granularity, *shape, matrices=5)
            scale = Surrounded(1, torch.Size(of_scales).numel(), torch.float32, 64, 32)
            memories += [data, scale]
            out = octofold.ScaledTensor(
                data.view.unflatten(0, shape[:2]), scale.view.view(of_scales), granularity
            )
            bits(out.data).fill_(0x55)
            out.scale.fill_(-7)
            targets[name] = octofold.ops.Target(granularity, out=out)
            alone[name] = cast_side(x, granularity, name == "transposed", matrices=5)
        octofold.ops.cast(x, **targets, matrices=used)
        for memory in memories:
            memory.assert_only_view_written()
        for name, target in targets.items():
            for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if begin < end:
                    assert torch.equal(bits(target.out.data[index]), bits(alone[name].data[index]))
                    assert torch.equal(target.out.scale[index], alone[name].scale[index])
                else:
                    assert (bits(target.out.data[index]) == 0x55).all()
                    assert (target.out.scale[index] == -7).all()


@needs_gpu
def test_used_matrices_change_from_replay_to_replay(generator):
    x = normal(generator, 6, 256, 384, dtype="bfloat16")
    offsets = torch.zeros(7, dtype=torch.int32, device=DEVICE)
    outs = [octofold.ops.cast(x, rows=unit, transposed=unit, matrices=6) for unit in GRANULARITIES]
    expected = [[(side.data.clone(), side.scale.clone()) for side in out[:2]] for out in outs]
    targets = [
        [octofold.ops.Target(unit, out=side) for side in out[:2]]
        for unit, out in zip(GRANULARITIES, outs, strict=True)
    ]

    def call():
        for rows, transposed in targets:
            matrices = octofold.Rows(offsets)
            octofold.ops.cast(x, rows=rows, transposed=transposed, matrices=matrices)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for sizes in ([0, 3, 0, 1, 0, 0], [1] * 6, [0] * 6, [0, 0, 0, 0, 0, 9]):
        offsets[1:] = torch.tensor(sizes, device=DEVICE).cumsum(0).int()
        for out in outs:
            for side in out[:2]:
                bits(side.data).fill_(0x7F)
        graph.replay()
        for out, sides in zip(outs, expected, strict=True):
            for side, (data, _) in zip(out[:2], sides, strict=True):
                for index, size in enumerate(sizes):
                    whole = bits(data[index]) if size else torch.full_like(bits(data[index]), 0x7F)
                    assert torch.equal(bits(side.data[index]), whole)


@needs("grouped products")
def test_products_of_experts_take_them(generator):
    """Forward and with gradients, as layers of experts have them."""
    experts, out_features, in_features = 4, 384, 256
    weight = normal(generator, experts, out_features, in_features, dtype="bfloat16")
    offsets = torch.tensor([0, 5, 5, 70, 90], dtype=torch.int32, device=DEVICE)
    for kind in (("128x128", "128x128"), ("tensor", "tensor"), ("channel", "channel")):
        casts = cast(weight, kind, experts)
        for stack, features in zip(casts, (in_features, out_features), strict=True):
            x = normal(generator, 90, features)
            a = octofold.quantize(x, "1x128" if kind[0] == "128x128" else kind[0])
            y = octofold.grouped_gemm(a, stack, octofold.Rows(offsets), out_dtype="float32")
            for index, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
                matrix = weight[index] if features == in_features else weight[index].T
                exact = x[begin:end] @ matrix.float().T
                error = (y[begin:end] - exact).norm()
                assert error <= 0.06 * exact.norm()
