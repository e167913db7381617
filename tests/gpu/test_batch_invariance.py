"""Rows of products that do not depend on the rows beside them: fewer of them, elsewhere, in other
company, by the kernels that are chosen for that many."""

import itertools

import octofold
import pytest
from octofold.ops import gated_gemm

from tests.gpu.gpu_support import DEVICE, DTYPES, needs, normal, operands, skip_without, torch
from tests.gpu.product_support import weights

skip_without("products")

ROWS = 1100
COUNTS = (1, 2, 7, 16, 17, 40, 64, 100, 129, 300, 777, ROWS)
# K that would be split where there are few rows, with and without a tail, and for threads to load.
NK = ((576, 7168), (264, 2064), (392, 1003))
PAIRS = (("1x128", "128x128"), ("1x128", "1x128"), ("channel", "channel"), ("tensor", "128x128"))


def rows_of(operand, rows):
    scale = operand.scale if operand.granularity == "tensor" else operand.scale[rows]
    return octofold.ScaledTensor(operand.data[rows], scale, operand.granularity)


def some_rows(generator, of=ROWS):
    """Sets of rows, of all sizes of COUNTS up to all rows, from anywhere."""
    for count in COUNTS:
        yield torch.randperm(of, generator=generator, device=DEVICE)[: min(count, of)]


def expect_same(some, whole, rows):
    kind = torch.int32 if whole.dtype == torch.float32 else torch.int16
    assert torch.equal(some.view(kind), whole[rows].view(kind))


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize(("n", "k"), NK)
def test_gemm(n, k, pair, out, generator):
    a, b = operands(generator, ROWS, n, k, pair)
    options = {"out_dtype": DTYPES[out], "batch_invariant": True}
    whole = octofold.gemm(a, b, **options)
    for rows in some_rows(generator):
        expect_same(octofold.gemm(rows_of(a, rows), b, **options), whole, rows)


@pytest.mark.parametrize("in_place", [False, True])
def test_addends(in_place, generator):
    """However D leaves, C and the bias are added in one order."""
    a, b = operands(generator, ROWS, 576, 2048)
    c, bias = normal(generator, ROWS, 576), normal(generator, 576)

    def product(rows):
        added = c[rows].clone()
        out = added if in_place else torch.empty_like(added)
        return octofold.gemm(rows_of(a, rows), b, c=added, bias=bias, out=out, batch_invariant=True)

    whole = product(torch.arange(ROWS, device=DEVICE))
    for rows in some_rows(generator):
        expect_same(product(rows), whole, rows)


def test_fast_accumulation(generator):
    a, b = operands(generator, ROWS, 576, 7168, ("channel", "channel"))
    options = {"fast_accumulation": True, "batch_invariant": True}
    whole = octofold.gemm(a, b, **options)
    for rows in some_rows(generator):
        expect_same(octofold.gemm(rows_of(a, rows), b, **options), whole, rows)


@needs("products that cast A")
def test_product_that_casts(generator):
    """The same bits as of the cast and the product one after another, too."""
    x = normal(generator, 64, 7168, dtype="bfloat16")
    b = octofold.quantize(normal(generator, 576, 7168), "128x128")
    whole = octofold.gemm(octofold.quantize(x), b, batch_invariant=True)
    for rows in some_rows(generator, of=64):
        expect_same(octofold.gemm(x[rows], b, batch_invariant=True), whole, rows)


@needs("grouped products")
@pytest.mark.parametrize("pair", PAIRS[:3], ids=str)
def test_groups(pair, generator):
    """A row of a group beside many, beside none, and as a product of its own."""
    sizes = (0, 1, 300, 64, 7, 728)
    a, _ = operands(generator, ROWS, 8, 2064, pair)
    b, parts = weights(generator, len(sizes), 384, 2064, pair[1])
    ends = [0, *itertools.accumulate(sizes)]

    def product(offsets, operand):
        groups = octofold.Rows(torch.tensor(offsets, dtype=torch.int32, device=DEVICE))
        return octofold.grouped_gemm(operand, b, groups, batch_invariant=True)

    many = product(ends, a)
    firsts = torch.tensor([begin for begin, size in zip(ends, sizes, strict=False) if size])
    one_each = [0, *itertools.accumulate(min(size, 1) for size in sizes)]
    expect_same(product(one_each, rows_of(a, firsts.to(DEVICE))), many, firsts.to(DEVICE))
    for group, part in enumerate(parts):
        rows = torch.arange(ends[group], ends[group + 1], device=DEVICE)
        if len(rows):
            alone = octofold.gemm(rows_of(a, rows), part, batch_invariant=True)
            expect_same(alone, many, rows)


@needs("grouped products")
def test_masked_groups(generator):
    room, n, k = 300, 384, 2064
    x = octofold.quantize(normal(generator, 3 * room, k))
    a = octofold.ScaledTensor(x.data.reshape(3, room, k), x.scale, "1x128")
    b, _ = weights(generator, 3, n, k, "128x128")

    def product(counts, expected):
        numbers = torch.tensor(counts, dtype=torch.int32, device=DEVICE)
        masked = octofold.Masked(numbers, expected)
        return octofold.grouped_gemm(a, b, masked, batch_invariant=True)

    many, few = product((300, 7, 129), 300), product((1, 7, 2), 4)
    for group, count in enumerate((1, 7, 2)):
        expect_same(few[group, :count], many[group, :count], slice(None))


@needs("gated products")
def test_gated_gemm(generator):
    a = octofold.quantize(normal(generator, ROWS, 2064))
    b = octofold.quantize(normal(generator, 768, 2064), "128x128")
    whole = gated_gemm(a, b, batch_invariant=True)
    for rows in some_rows(generator):
        some = gated_gemm(rows_of(a, rows), b, batch_invariant=True)
        assert torch.equal(some.data.view(torch.uint8), whole.data[rows].view(torch.uint8))
        assert torch.equal(some.scale, whole.scale[rows])


@needs("grouped products")
def test_layers(generator):
    """The switch for all calls of the process, with casts, norms, experts and routing."""
    experts = octofold.nn.Experts(512, 256, 8, device=DEVICE, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(std=0.05)
    linear = octofold.nn.Linear(7168, 512, device=DEVICE, dtype=torch.bfloat16)
    norm = octofold.nn.NormLinear(512, 512, device=DEVICE, dtype=torch.bfloat16)
    x = normal(generator, ROWS, 7168, dtype="bfloat16")
    ids = torch.rand(ROWS, 8, generator=generator, device=DEVICE).argsort()[:, :2].int()
    shares = torch.rand(ROWS, 2, generator=generator, device=DEVICE)

    def model(rows):
        return experts(norm(linear(x[rows])), ids[rows], shares[rows])

    octofold.set_batch_invariant(True)
    try:
        with torch.no_grad():
            whole = model(slice(None))
            for rows in some_rows(generator):
                expect_same(model(rows), whole, rows)
    finally:
        octofold.set_batch_invariant(False)
