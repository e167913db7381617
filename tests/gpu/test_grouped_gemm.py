"""Products of groups on the GPU: the bits of separate products, by every kernel, whatever the sizes
of the groups, and nothing written besides; nothing read or written outside whatever the numbers."""

import itertools

import octofold
import pytest
from octofold import Masked, Rows, ScaledTensor, tuning

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    Surrounded,
    assert_same_bits,
    captured,
    gemm_by,
    needs_gpu,
    operand,
    poison,
    product_candidates,
    skip_without,
    surrounded_copy,
    torch,
)
from tests.gpu.product_support import (
    HOSTILE,
    NK,
    PLAIN,
    PLAIN_FAST,
    SIZES,
    assert_nothing_outside,
    candidates,
    grouped_by,
    offsets_of,
    onto_c,
    weights,
)

skip_without("grouped products")


def rows_of(tensor, begin, end):
    if tensor.granularity == "128x128":
        scale = tensor.scale.repeat_interleave(128, dim=0)[begin:end]
        return ScaledTensor(tensor.data[begin:end], scale, "1x128")
    return tensor[begin:end]


def expected_rows(a, parts, sizes, dtype, c=None, bias=None, fast=False):
    """The rows of all groups, by separate products."""
    results, begin = [], 0
    for g, size in enumerate(sizes):
        end = begin + size
        out = poison(size * parts[g].shape[0], dtype).view(size, parts[g].shape[0])
        if size:
            gemm_by(
                PLAIN_FAST if fast else PLAIN,
                rows_of(a, begin, end),
                parts[g],
                out,
                c=None if c is None else c[begin:end],
                bias=None if bias is None else bias[g],
                fast=fast,
            )
        results.append(out)
        begin = end
    return torch.cat(results)


def check_rows(candidate, generator, sizes, n, k, pair=("1x128", "128x128"), spare=5, **options):
    rows = sum(sizes) + spare
    a = operand(generator, rows, k, granularity=pair[0])
    b, parts = weights(generator, len(sizes), n, k, pair[1])
    dtype = options.pop("dtype", torch.bfloat16)
    padding = options.pop("padding", 8)
    out = Surrounded(rows, n, dtype, padding=padding, offset=padding)
    grouped_by(candidate, a, b, Rows(offsets_of(sizes)), out.view, **options)
    total = sum(sizes)
    expected = expected_rows(a, parts, sizes, dtype, **options)
    assert_same_bits(out.view[:total].contiguous(), expected)
    out.assert_written(total * n)


@pytest.mark.parametrize("candidate", candidates())
def test_every_candidate(candidate, generator):
    for sizes, (n, k) in zip(SIZES, NK, strict=True):
        check_rows(candidate, generator, sizes, n, k)


@pytest.mark.parametrize("candidate", candidates("a e4m3 128x128", "b e4m3 1x128", "out float32"))
def test_every_candidate_on_squares_of_a(candidate, generator):
    check_rows(candidate, generator, SIZES[3], 264, 400, ("128x128", "1x128"), dtype=torch.float32)


@pytest.mark.parametrize("a", GRANULARITIES)
@pytest.mark.parametrize("b", GRANULARITIES)
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
def test_every_pair_of_granularities(a, b, out, generator):
    for sizes in SIZES[2:]:
        n, k = 200, 656
        dtype = DTYPES[out]
        c = torch.randn(sum(sizes) + 5, n, device=DEVICE).to(dtype)
        bias = torch.randn(len(sizes), n, device=DEVICE)
        check_rows(None, generator, sizes, n, k, (a, b), dtype=dtype, c=c, bias=bias)


@pytest.mark.parametrize("pair", [("tensor", "tensor"), ("channel", "channel")])
def test_fast_accumulation(pair, generator):
    check_rows(None, generator, SIZES[3], 264, 1040, pair, fast=True)


@pytest.mark.parametrize("k", [36, 100, 131])
def test_rows_that_tma_cannot_address(k, generator):
    for sizes in SIZES[:4]:
        check_rows(None, generator, sizes, 77, k, padding=3)


def test_in_place(generator):
    sizes, n, k = SIZES[3], 264, 400
    a = operand(generator, sum(sizes), k)
    b, parts = weights(generator, len(sizes), n, k, "128x128")
    out = torch.randn(sum(sizes), n, device=DEVICE)
    before = out.clone()
    grouped_by(None, a, b, Rows(offsets_of(sizes)), out, c=out)
    expected = expected_rows(a, parts, sizes, torch.float32, c=before)
    assert_same_bits(out, expected)


@pytest.mark.parametrize("candidate", candidates())
def test_masked_groups(candidate, generator):
    for rows, counts, (n, k) in (
        (200, (0, 200, 3, 77), (264, 400)),
        (64, (64, 1, 0, 64, 63), (1408, 272)),
        (520, (513,), (640, 1040)),
    ):
        groups = len(counts)
        flat = operand(generator, groups * rows, k)
        b, parts = weights(generator, groups, n, k, "128x128")
        out = Surrounded(groups * rows, n, torch.bfloat16, padding=0, offset=8)
        scale = flat.scale.view(groups, rows, -1)
        if rows == 200:  # as DeepGEMM has them, M-major in each group
            scale = scale.transpose(1, 2).contiguous().transpose(1, 2)
        a = ScaledTensor(flat.data.view(groups, rows, k), scale, "1x128")
        numbers = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
        grouped_by(candidate, a, b, Masked(numbers), out.view.view(groups, rows, n))
        for g, count in enumerate(counts):
            first = g * rows
            if count:
                expected = torch.empty(count, n, dtype=torch.bfloat16, device=DEVICE)
                gemm_by(PLAIN, flat[first : first + count], parts[g], expected)
                assert_same_bits(out.view[first : first + count].contiguous(), expected)
        out.assert_written(sum(counts) * n)


def test_every_candidate_onto_c_on_groups_of_rows(generator):
    for candidate in onto_c():
        for sizes, (n, k) in zip(SIZES, NK, strict=True):
            c = torch.randn(sum(sizes) + 5, n, device=DEVICE)
            check_rows(candidate, generator, sizes, n, k, dtype=torch.float32, c=c)


@pytest.mark.parametrize(
    "candidate",
    product_candidates("gated_gemm", "groups 4 of rows"),
)
def test_gated_groups(candidate, generator):
    for sizes, (n, k) in zip(
        SIZES, ((128, 128), (256, 400), (640, 1040), (1408, 272), (384, 656)), strict=True
    ):
        a = operand(generator, sum(sizes) + 3, k)
        b, parts = weights(generator, len(sizes), 2 * n, k, "128x128")
        b.scale.mul_(32 / k**0.5)
        for part in parts:
            part.scale.mul_(32 / k**0.5)
        offsets = offsets_of(sizes)
        codes = Surrounded(sum(sizes) + 3, n, torch.float8_e4m3fn, padding=16, offset=16)
        scale = poison((sum(sizes) + 3) * (n // 128), torch.float32).view(-1, n // 128)
        out = ScaledTensor(codes.view, scale, "1x128")
        with tuning.using(candidate):
            octofold.ops.gated_gemm(a, b, Rows(offsets), out=out)
        begin = 0
        for g, size in enumerate(sizes):
            if size:
                expected = octofold.ops.gated_gemm(a[begin : begin + size], parts[g])
                assert_same_bits(codes.view[begin : begin + size].contiguous(), expected.data)
                assert_same_bits(scale[begin : begin + size], expected.scale.contiguous())
            begin += size
        assert torch.isnan(scale[begin:]).all()
        codes.assert_written(begin * n)


@needs_gpu
def test_sizes_change_between_replays_of_a_graph(generator):
    rows, n, k, groups = 900, 640, 1040, 6
    a = operand(generator, rows, k)
    b, parts = weights(generator, groups, n, k, "128x128")
    offsets = offsets_of([rows // groups] * groups)
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=DEVICE)
    graph, _ = captured(lambda: octofold.grouped_gemm(a, b, Rows(offsets), out=out))
    random = torch.Generator().manual_seed(5)
    for _ in range(100):
        cuts = torch.randint(0, rows + 1, (groups - 1,), generator=random).sort().values.tolist()
        numbers = [0, *cuts, rows]
        sizes = [end - begin for begin, end in itertools.pairwise(numbers)]
        offsets.copy_(offsets_of(sizes))
        graph.replay()
        assert_same_bits(out, octofold.grouped_gemm(a, b, Rows(offsets)))
    assert_same_bits(out, expected_rows(a, parts, sizes, torch.bfloat16))


@pytest.mark.parametrize("numbers", HOSTILE)
@needs_gpu
def test_nothing_outside_is_written_whatever_the_numbers(numbers, generator):
    rows, n, k, groups = 200, 264, 400, 3
    hostile = torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
    a = surrounded_copy(operand(generator, rows, k).data, offset=16)
    scaled = ScaledTensor(a, operand(generator, rows, k).scale, "1x128")
    b, _ = weights(generator, groups, n, k, "128x128")
    for dtype in (torch.bfloat16, torch.float32):
        out = Surrounded(rows, n, dtype, padding=8, offset=8)
        grouped_by(None, scaled, b, Rows(hostile), out.view)
        masked = Surrounded(groups * 64, n, dtype, offset=8)
        of_groups = ScaledTensor(
            scaled.data[: groups * 64].view(groups, 64, k),
            scaled.scale[: groups * 64].view(groups, 64, -1),
            "1x128",
        )
        view = masked.view.view(groups, 64, n)
        grouped_by(None, of_groups, b, Masked(hostile[:groups]), view)
        assert_nothing_outside(out)
        assert_nothing_outside(masked)
    for candidate in onto_c():
        out = Surrounded(rows, n, torch.float32, padding=8, offset=8)
        c = torch.randn(rows, n, device=DEVICE)
        grouped_by(candidate, scaled, b, Rows(hostile), out.view, c=c)
        assert_nothing_outside(out)
