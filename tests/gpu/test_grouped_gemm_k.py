"""Products of groups of K on the GPU: the bits of separate products, by every kernel, whatever the
sizes of the groups; nothing written outside whatever the numbers."""

import itertools

import pytest
from octofold import Depth, ScaledTensor

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    assert_same_bits,
    gemm_by,
    needs_gpu,
    operand,
    poison,
    skip_without,
    torch,
    with_data,
)
from tests.gpu.product_support import (
    HOSTILE,
    PLAIN,
    SIZES,
    candidates,
    grouped_by,
    offsets_of,
    onto_c,
)

skip_without("grouped products")


def columns_of(offsets, g, spaces=1):
    """The place where the columns of a group begin, with so many blocks of 128 between groups."""
    return 128 * (int(offsets[g]) // 128 + spaces * g)


def grouped_operand(generator, offsets, features, granularity, spaces):
    """[features, columns] in groups of K: zeros up to whole blocks, NaN elsewhere."""
    sizes = (offsets[1:] - offsets[:-1]).tolist()
    columns = columns_of(offsets, len(sizes), spaces)
    tensor = operand(generator, features, columns, granularity=granularity)
    codes = tensor.data.view(torch.uint8)
    kept = codes.clone()
    codes.fill_(0x7F)
    for g, size in enumerate(sizes):
        begin = columns_of(offsets, g, spaces)
        codes[:, begin : begin + (size + 127) // 128 * 128] = 0
        codes[:, begin : begin + size] = kept[:, begin : begin + size]
    return tensor


def columns_slice(tensor, begin, size):
    data = tensor.data[:, begin : begin + size].contiguous()
    if tensor.granularity not in ("1x128", "128x128"):
        return with_data(tensor, data)
    scale = tensor.scale[:, begin // 128 : begin // 128 + (size + 127) // 128]
    return ScaledTensor(data, scale, tensor.granularity)


def check_depth(
    candidate, generator, sizes, m, n, pair, dtype=torch.float32, c=None, layout="spaced"
):
    """c: "out", "other" or None."""
    spaces = int(layout == "spaced")
    offsets = offsets_of(sizes)
    a = grouped_operand(generator, offsets, m, pair[0], spaces)
    b = grouped_operand(generator, offsets, n, pair[1], spaces)
    addend = torch.randn(len(sizes), m, n, device=DEVICE).to(dtype)
    out = addend.clone() if c == "out" else poison(addend.numel(), dtype).view(addend.shape)
    added = {None: None, "out": out, "other": addend}[c]
    grouped_by(candidate, a, b, Depth(offsets, layout), out, c=added)
    for g, size in enumerate(sizes):
        expected = addend[g] if c else torch.zeros(m, n, dtype=dtype, device=DEVICE)
        if size:
            expected = torch.empty(m, n, dtype=dtype, device=DEVICE)
            first = columns_of(offsets, g, spaces)
            parts = [columns_slice(tensor, first, size) for tensor in (a, b)]
            gemm_by(PLAIN, *parts, expected, c=addend[g] if c else None)
        assert_same_bits(out[g], expected)


@pytest.mark.parametrize(
    "candidate", candidates("b e4m3 1x128", "out float32", "c float32", of="k")
)
def test_every_candidate_on_groups_of_k(candidate, generator):
    for sizes, (m, n) in zip(
        SIZES, ((128, 128), (256, 72), (200, 264), (328, 520), (64, 1408)), strict=True
    ):
        check_depth(candidate, generator, sizes, m, n, ("1x128", "1x128"), c="out")


# Tails of rows and columns, boxes beyond them; more tiles than blocks, of few stages and of many.
ONTO_C = (((0, 130, 1, 300), 328, 200), ((256, 0, 77), 1100, 1304), ((3000, 5), 200, 520))


@pytest.mark.parametrize("b", ["1x128", "channel"])
def test_every_candidate_onto_c_on_groups_of_k(b, generator):
    for candidate in onto_c(f"b e4m3 {b}", of="k"):
        for sizes, m, n in ONTO_C:
            for c in ("out", "other"):
                check_depth(candidate, generator, sizes, m, n, ("1x128", b), c=c)


@pytest.mark.parametrize("pair", list(itertools.product(GRANULARITIES, GRANULARITIES)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_pair_on_groups_of_k(pair, dtype, generator):
    for c in (None, "out", "other"):
        check_depth(None, generator, SIZES[3], 328, 200, pair, DTYPES[dtype], c)
    check_depth(None, generator, (128, 0, 384), 328, 200, pair, DTYPES[dtype], layout="tight")


@pytest.mark.parametrize("numbers", HOSTILE)
@needs_gpu
def test_nothing_outside_is_written_whatever_the_numbers(numbers, generator):
    rows, n, groups = 200, 264, 3
    hostile = torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
    x = operand(generator, n, 128 * (rows // 128 + groups))
    added = onto_c("b e4m3 1x128", of="k")
    for candidate in (None, *added):
        sums = torch.full((groups + 2, n, n), torch.nan, device=DEVICE)
        sums[1:-1] = 0
        c = None if candidate is None else sums[1:-1]
        grouped_by(candidate, x, x, Depth(hostile), sums[1:-1], c=c)
        torch.cuda.synchronize()
        assert torch.isnan(sums[0]).all()
        assert torch.isnan(sums[-1]).all()
