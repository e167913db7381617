"""Casts of stacks of matrices on the GPU: for each matrix the bytes that the CPU backend gives it
alone, and nothing written beside the targets."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    Surrounded,
    bits,
    needs,
    needs_gpu,
    normal,
    torch,
)
from tests.python.casting import GRANULARITIES, cast_side, cast_with, only

SOURCES = ("bfloat16", "float16", "float32")
# Granularities of the rows and of the transposes; None: not written.
KINDS = (
    *((granularity, granularity) for granularity in GRANULARITIES),
    *((granularity, None) for granularity in GRANULARITIES),
    *((None, granularity) for granularity in GRANULARITIES),
    ("1x128", "channel"),
    ("1x128", "128x128"),
)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
every_source = pytest.mark.parametrize("source", SOURCES)
# Matrices, and rows and columns of each: an even number of tiles below each other, an odd one; not
# in whole tiles; not in whole vectors; one; many.
STACKS = (
    (3, 256, 384),
    (4, 384, 128),
    (5, 136, 272),
    (3, 131, 77),
    (2, 150, 264),
    (1, 200, 144),
    (40, 8, 136),
    (7, 1, 1),
    (2, 0, 16),
    (3, 16, 0),
)


def spread_out(generator, matrices, rows, cols, source):
    """Each matrix with a magnitude of its own, and special values in the last one."""
    exponents = 20 * torch.rand((matrices, 1, 1), generator=generator, device=DEVICE) - 10
    x = normal(generator, matrices, rows, cols) * torch.exp2(exponents)
    if matrices > 1 and rows * cols > 4:
        flat = x[-1].view(-1)
        for index, special in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
            flat[index * flat.numel() // 4] = special
        x[0, rows // 2] = 0
    return x.to(DTYPES[source])


def cast(x, kind, matrices=None, **options):
    """The casts of rows and of transposes, each only if `kind` has its granularity."""
    rows, transposed = (
        None if unit is None else octofold.Format(granularity=unit, **options) for unit in kind
    )
    return octofold.ops.cast(x, rows=rows, transposed=transposed, matrices=matrices)[:2]


def without_nans(scale):
    """Any NaN is as good as another."""
    scale = scale.cpu().contiguous()
    return bits(torch.where(torch.isnan(scale), torch.nan, scale))


def assert_each_alone(stack, alone):
    """`alone` are the casts of each matrix on the CPU."""
    data = stack.data.cpu()
    assert stack.scale.shape[0] == data.shape[0] == len(alone)
    for index, expected in enumerate(alone):
        assert stack.granularity == expected.granularity
        assert torch.equal(bits(data[index]), bits(expected.data))
        scale = stack.scale[index].reshape(expected.scale.shape)
        assert torch.equal(without_nans(scale), without_nans(expected.scale))


def check(x, kind, **options):
    targets = cast(x, kind, x.shape[0], **options)
    each = [cast(matrix.cpu(), kind, **options) for matrix in x]
    for stack, alone in zip(targets, zip(*each, strict=True), strict=True):
        if stack is not None:
            assert_each_alone(stack, alone)


@every_source
@every_kind
def test_each_matrix_is_cast_as_if_alone(kind, source, generator):
    for stack in STACKS:
        check(spread_out(generator, *stack, source), kind)


@every_kind
@pytest.mark.parametrize("rule", ["vllm", "te", "torchao", "deepseek", "compressed-tensors"])
def test_every_rule(kind, rule, generator):
    for index, stack in enumerate(((3, 136, 272), (2, 131, 77))):
        options = {"dtype": ("e5m2", "e4m3")[index], "overflow": ("nan", "saturate")[index]}
        check(spread_out(generator, *stack, SOURCES[index]), kind, rule=rule, **options)


@every_kind
def test_rows_may_lie_anywhere(kind, generator):
    """Matrices in one whose rows are longer, and in vectors that begin anywhere."""
    for padding, offset in ((16, 0), (1, 0), (5, 3)):
        memory = Surrounded(3 * 136, 272, torch.bfloat16, padding, offset)
        memory.view.copy_(normal(generator, 3 * 136, 272))
        check(memory.view.unflatten(0, (3, 136)), kind)
    check(normal(generator, 3, 130, 200)[:, :, 72:], kind)
    flat = normal(generator, 6, 40, 136)
    stacks = cast(flat, kind, 2), cast(flat.view(2, 120, 136), kind, 2)
    for left, right in zip(*stacks, strict=True):
        if left is not None:
            assert torch.equal(bits(left.data.flatten()), bits(right.data.flatten()))
            assert torch.equal(left.scale.flatten(), right.scale.flatten())


@pytest.mark.parametrize("rule", ["deepgemm", "torchao"])
@every_source
def test_two_level_scales(rule, source, generator):
    for matrices, rows, cols in ((3, 136, 272), (2, 131, 77)):
        x = spread_out(generator, matrices, rows, cols, source)
        factors = [
            torch.exp2(8 * torch.rand((matrices, count), generator=generator, device=DEVICE) - 4)
            for count in (rows, cols)
        ]
        for granularity in ("128x128", "1x128"):
            names = ("channel_scale", "transposed_channel_scale")
            given = dict(zip(names, factors, strict=True))
            if granularity == "1x128":
                del given["channel_scale"]
            options = {
                "granularity": granularity,
                "transposed_granularity": "128x128",
                "rule": rule,
                "targets": "both",
            }
            flat = {name: factor.flatten() for name, factor in given.items()}
            stacks = only(cast_with(x, matrices=matrices, **flat, **options))
            each = [
                only(
                    cast_with(
                        x[index].cpu(),
                        **{name: factor[index].cpu() for name, factor in given.items()},
                        **options,
                    )
                )
                for index in range(matrices)
            ]
            for stack, alone in zip(stacks, zip(*each, strict=True), strict=True):
                assert_each_alone(stack, alone)


@pytest.mark.parametrize("transpose", [False, True], ids=["rows", "transposed"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_given_scales(granularity, transpose, generator):
    for stack, source in itertools.product(((3, 136, 272), (2, 131, 77)), SOURCES):
        matrices, rows, cols = stack
        x = normal(generator, *stack, dtype=source)
        shape = (matrices, cols, rows) if transpose else stack
        scale = torch.rand(
            octofold.ops.scale_shape(granularity, *shape, matrices=matrices),
            generator=generator,
            device=DEVICE,
        )
        result = cast_side(x, granularity, transpose, matrices=matrices, scale=scale)
        assert result.scale is scale
        each = [
            cast_side(x[i].cpu(), granularity, transpose, scale=scale[i : i + 1].cpu().view(one))
            for i, one in enumerate([octofold.ops.scale_shape(granularity, *shape[1:])] * matrices)
        ]
        assert_each_alone(result, each)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_nothing_else_is_written(granularity, generator):
    """Into transposes with room behind each row, in the midst of poison."""
    for (matrices, rows, cols), padding, offset in itertools.product(
        ((3, 136, 272), (2, 131, 77)), (0, 16, 3), (0, 1)
    ):
        x = normal(generator, matrices, rows, cols, dtype="bfloat16")
        shape = (matrices, cols, rows)
        memory = Surrounded(matrices * cols, rows, torch.float8_e4m3fn, padding, offset)
        scale_shape = octofold.ops.scale_shape(granularity, *shape, matrices=matrices)
        count = torch.Size(scale_shape).numel()
        scale = Surrounded(1, count, torch.float32, 64, 32)
        out = octofold.ScaledTensor(
            memory.view.unflatten(0, (matrices, cols)), scale.view.view(scale_shape), granularity
        )
        target = octofold.ops.Target(granularity, out=out)
        octofold.ops.cast(x, transposed=target, matrices=matrices)
        memory.assert_only_view_written()
        scale.assert_only_view_written()
        assert_each_alone(out, [cast_side(matrix.cpu(), granularity, True) for matrix in x])


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


@needs_gpu
def test_same_bits_in_a_graph(generator):
    x = normal(generator, 8, 384, 1024, dtype="bfloat16")
    for granularity in GRANULARITIES:
        kind = (granularity, granularity)
        first = cast(x, kind, 8)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = cast(x, kind, 8)
        for _ in range(5):
            graph.replay()
            for left, right in zip(first, captured, strict=True):
                assert torch.equal(bits(left.data), bits(right.data))
                assert torch.equal(left.scale, right.scale)


@pytest.mark.skipif(not ON_GPU, reason="9 GB of memory, and quick casts")
@pytest.mark.parametrize("kind", [("128x128", "128x128"), ("1x128", "128x128")])
def test_more_elements_than_32_bits_count(kind):
    """33 matrices of 2^26 elements: the last one begins behind 2^31."""
    x = torch.randn(8192, 8192, device=DEVICE).bfloat16().expand(33, 8192, 8192).contiguous()
    expected = cast(x[0], kind)
    for stack, alone in zip(cast(x, kind, 33), expected, strict=True):
        for index in (0, 31, 32):
            assert torch.equal(bits(stack.data[index]), bits(alone.data))
            assert torch.equal(stack.scale[index], alone.scale)
