"""Products of groups on the GPU: the bits of separate products, by every kernel, whatever the sizes
of the groups, and nothing written besides; nothing read or written outside whatever the numbers."""

import itertools

import octofold
import pytest
from gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    ON_GPU,
    PAIRS,
    Surrounded,
    assert_same_bits,
    gemm_by,
    needs_gpu,
    operand,
    poison,
    surrounded_copy,
    torch,
    with_data,
)
from octofold import ScaledTensor
from octofold._library import library

# No sums in slices of K: groups have none either.
PLAIN = "64x64.w1.c1x1x1.b1.alternating" if ON_GPU else None
PLAIN_FAST = "64x64.w1.c1x1x1.b1" if ON_GPU else None

SIZES = (
    (1,),
    (0, 5, 0),
    (64, 128, 256, 8),
    (130, 1, 0, 77, 300, 63),
    (0, 0, 900, 3, 3, 0, 129, 512, 0),
)
NK = ((128, 128), (264, 400), (640, 1040), (1408, 272), (72, 4112))


def form(a="1x128", b="128x128", out="bfloat16", c=None, bias=None, fast=False):
    return {
        "m": 1,
        "n": 1,
        "k": 1,
        "a": "e4m3",
        "a_granularity": a,
        "b": "e4m3",
        "b_granularity": b,
        "out": out,
        "c": c,
        "bias": bias,
        "fast_accumulation": fast,
    }


def candidates(groups_depth=False, **fields):
    if not ON_GPU:
        return [None]
    return [str(name) for name in library.grouped_gemm_candidates(form(**fields), groups_depth)]


def offsets_of(sizes):
    numbers = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
    return numbers.to(DEVICE)


def weights(generator, groups, n, k, granularity):
    """[G, n, k], each group's scales its own, and those groups one by one."""
    parts = [operand(generator, n, k, granularity=granularity) for _ in range(groups)]
    scales = [part.scale.reshape(1, *part.scale.shape) for part in parts]
    scale = torch.cat(scales).reshape(groups) if granularity == "tensor" else torch.cat(scales)
    # torch stacks no float8
    codes = torch.stack([part.data.view(torch.uint8) for part in parts])
    return ScaledTensor(codes.view(torch.float8_e4m3fn), scale, granularity), parts


def rows_of(tensor, begin, end):
    if tensor.granularity == "128x128":
        scale = tensor.scale.repeat_interleave(128, dim=0)[begin:end]
        return ScaledTensor(tensor.data[begin:end], scale, "1x128")
    return tensor[begin:end]


def call(name, candidate, tensors, *options):
    stream = torch.cuda.current_stream().cuda_stream if ON_GPU else None
    if candidate is None:
        getattr(library, name)(*tensors, *options, stream)
    else:
        getattr(library, f"{name}_by_candidate")(*tensors, *options, stream, candidate)


def grouped_by(candidate, a, b, offsets, out, c=None, bias=None, fast=False):
    tensors = (a.data, a.scale, b.data, b.scale, offsets, c, bias, out)
    call("grouped_gemm", candidate, tensors, a.granularity, b.granularity, fast)


def expected_rows(a, parts, sizes, dtype, c=None, bias=None, fast=False):
    """Of the rows of all groups, by separate products."""
    results, begin = [], 0
    for g, size in enumerate(sizes):
        end = begin + size
        out = poison(size * parts[g].shape[0], dtype).view(size, parts[g].shape[0])
        if size:
            gemm_by(
                PLAIN_FAST if fast and ON_GPU else PLAIN,
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
    grouped_by(candidate, a, b, offsets_of(sizes), out.view, **options)
    total = sum(sizes)
    expected = expected_rows(a, parts, sizes, dtype, **options)
    assert_same_bits(out.view[:total].contiguous(), expected)
    written = out._memory.numel() - int(torch.isnan(out._memory).sum())
    assert written == total * n


@pytest.mark.parametrize("candidate", candidates())
def test_every_candidate(candidate, generator):
    for sizes, (n, k) in zip(SIZES, NK, strict=True):
        check_rows(candidate, generator, sizes, n, k)


@pytest.mark.parametrize("candidate", candidates(a="128x128", b="1x128", out="float32"))
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
    grouped_by(None, a, b, offsets_of(sizes), out, c=out)
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
        a = ScaledTensor(
            flat.data.view(groups, rows, k), flat.scale.view(groups, rows, -1), "1x128"
        )
        numbers = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
        tensors = (a.data, a.scale, b.data, b.scale, numbers, None, out.view.view(groups, rows, n))
        call("masked_gemm", candidate, tensors, "1x128", "128x128", False, None)
        for g, count in enumerate(counts):
            first = g * rows
            if count:
                expected = torch.empty(count, n, dtype=torch.bfloat16, device=DEVICE)
                gemm_by(PLAIN, flat[first : first + count], parts[g], expected)
                assert_same_bits(out.view[first : first + count].contiguous(), expected)
        written = out._memory.numel() - int(torch.isnan(out._memory).sum())
        assert written == sum(counts) * n


def columns_of(offsets, g):
    """Where the columns of a group begin."""
    return 128 * (int(offsets[g]) // 128 + g)


def grouped_operand(generator, offsets, features, granularity):
    """[features, columns] in groups of K: zeros up to whole blocks, NaN elsewhere."""
    sizes = (offsets[1:] - offsets[:-1]).tolist()
    columns = 128 * (int(offsets[-1]) // 128 + len(sizes))
    tensor = operand(generator, features, columns, granularity=granularity)
    codes = tensor.data.view(torch.uint8)
    kept = codes.clone()
    codes.fill_(0x7F)
    for g, size in enumerate(sizes):
        begin = columns_of(offsets, g)
        codes[:, begin : begin + (size + 127) // 128 * 128] = 0
        codes[:, begin : begin + size] = kept[:, begin : begin + size]
    return tensor


def columns_slice(tensor, begin, size):
    data = tensor.data[:, begin : begin + size].contiguous()
    if tensor.granularity not in ("1x128", "128x128"):
        return with_data(tensor, data)
    scale = tensor.scale[:, begin // 128 : begin // 128 + (size + 127) // 128]
    return ScaledTensor(data, scale, tensor.granularity)


def check_depth(candidate, generator, sizes, m, n, pair, dtype=torch.float32, in_place=False):
    offsets = offsets_of(sizes)
    a = grouped_operand(generator, offsets, m, pair[0])
    b = grouped_operand(generator, offsets, n, pair[1])
    out = torch.randn(len(sizes), m, n, device=DEVICE).to(dtype)
    before = out.clone()
    tensors = (a.data, a.scale, b.data, b.scale, offsets, out if in_place else None, out)
    call("grouped_gemm_k", candidate, tensors, a.granularity, b.granularity, False)
    for g, size in enumerate(sizes):
        expected = torch.zeros(m, n, dtype=dtype, device=DEVICE)
        c = before[g] if in_place else None
        if size:
            first = columns_of(offsets, g)
            parts = [columns_slice(tensor, first, size) for tensor in (a, b)]
            gemm_by(PLAIN, *parts, expected, c=c)
        elif in_place:
            expected = before[g]
        assert_same_bits(out[g], expected)


@pytest.mark.parametrize(
    "candidate", candidates(True, a="1x128", b="1x128", out="float32", c="float32")
)
def test_every_candidate_on_groups_of_k(candidate, generator):
    for sizes, (m, n) in zip(
        SIZES, ((128, 128), (256, 72), (200, 264), (328, 520), (64, 1408)), strict=True
    ):
        check_depth(candidate, generator, sizes, m, n, ("1x128", "1x128"), in_place=True)


@pytest.mark.parametrize("pair", list(itertools.product(GRANULARITIES, GRANULARITIES)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_pair_on_groups_of_k(pair, dtype, generator):
    for in_place in (False, True):
        check_depth(None, generator, SIZES[3], 328, 200, pair, DTYPES[dtype], in_place)


@pytest.mark.parametrize(
    "candidate",
    [str(name) for name in library.gated_gemm_candidates()] if ON_GPU else [None],
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
        tensors = (a.data, a.scale, b.data, b.scale, offsets, codes.view, scale)
        call(
            "grouped_gated_gemm",
            candidate,
            tensors,
            "1x128",
            "128x128",
            "swiglu",
            None,
            "saturate",
            "deepgemm",
        )
        begin = 0
        for g, size in enumerate(sizes):
            if size:
                expected = octofold.gated_gemm(a[begin : begin + size], parts[g])
                assert_same_bits(codes.view[begin : begin + size].contiguous(), expected.data)
                assert_same_bits(scale[begin : begin + size], expected.scale.contiguous())
            begin += size
        assert torch.isnan(scale[begin:]).all()
        written = codes._memory.numel() - int(torch.isnan(codes._memory).sum())
        assert written == begin * n


@needs_gpu
@pytest.mark.parametrize("pair", PAIRS[:4])
def test_the_same_bits_each_time(pair, generator):
    sizes = (700, 0, 33, 129, 1)
    a = operand(generator, sum(sizes), 2048, granularity=pair[0])
    b, _ = weights(generator, len(sizes), 1280, 2048, pair[1])
    results = [octofold.grouped_gemm(a, b, offsets_of(sizes)) for _ in range(20)]
    for result in results[1:]:
        assert_same_bits(result, results[0])


@needs_gpu
def test_sizes_change_between_replays_of_a_graph(generator):
    rows, n, k, groups = 900, 640, 1040, 6
    a = operand(generator, rows, k)
    b, parts = weights(generator, groups, n, k, "128x128")
    offsets = offsets_of([rows // groups] * groups)
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=DEVICE)
    octofold.grouped_gemm(a, b, offsets, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        octofold.grouped_gemm(a, b, offsets, out=out)
    random = torch.Generator().manual_seed(5)
    for _ in range(100):
        cuts = torch.randint(0, rows + 1, (groups - 1,), generator=random).sort().values.tolist()
        numbers = [0, *cuts, rows]
        sizes = [end - begin for begin, end in itertools.pairwise(numbers)]
        offsets.copy_(offsets_of(sizes))
        graph.replay()
        assert_same_bits(out, octofold.grouped_gemm(a, b, offsets))
    assert_same_bits(out, expected_rows(a, parts, sizes, torch.bfloat16))


HOSTILE = (
    (0, 100, 50, 200),
    (-5, 7, 300, 2**31 - 1),
    (2**31 - 1, 0, -(2**31), 5),
    (300, 200, 100, 0),
    (17, 17, 17, 17),
)


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
        grouped_by(None, scaled, b, hostile, out.view)
        masked = Surrounded(groups * 64, n, dtype, offset=8)
        tensors = (
            scaled.data[: groups * 64].view(groups, 64, k),
            scaled.scale[: groups * 64].view(groups, 64, -1),
            b.data,
            b.scale,
            hostile[:groups],
            None,
            masked.view.view(groups, 64, n),
        )
        call("masked_gemm", None, tensors, "1x128", "128x128", False, None)
        for surrounded in (out, masked):
            outside = surrounded._memory.clone()
            outside.as_strided(
                surrounded.view.shape, surrounded.view.stride(), surrounded.view.storage_offset()
            ).fill_(torch.nan)
            assert torch.isnan(outside).all()
    x = operand(generator, n, 128 * (rows // 128 + groups))
    sums = torch.full((groups + 2, n, n), torch.nan, device=DEVICE)
    tensors = (x.data, x.scale, x.data, x.scale, hostile, None, sums[1:-1])
    call("grouped_gemm_k", None, tensors, "1x128", "1x128", False)
    torch.cuda.synchronize()
    assert torch.isnan(sums[0]).all()
    assert torch.isnan(sums[-1]).all()
