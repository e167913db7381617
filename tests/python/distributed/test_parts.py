"""Parts of FP8 weights, whose scales may straddle the border of ranks."""

import octofold
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octofold import quantize

if not torch.distributed.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

from octofold.distributed.tensor_parallel.fp8_shards import (
    bounds_of,
    joined_rows,
    shard_of,
    squares_of,
)

GRANULARITIES = ["128x128", "1x128", "channel", "tensor"]


@st.composite
def problems(draw):
    size = draw(st.sampled_from([1, 2, 3, 8]))
    split = draw(st.sampled_from([2112, 1536, 768, 264, 24, 130, size, 5 * size, 128 * size]))
    if -(-split // size) * (size - 1) >= split:
        split = size
    other = draw(st.sampled_from([16, 128, 200]))
    return size, split, other, draw(st.sampled_from(GRANULARITIES))


def operands(rows, columns, granularity):
    """An x whose cast loses nothing, and a weight in FP8."""
    generator = torch.Generator().manual_seed(rows * 3 + columns)
    x = torch.randint(-8, 9, (4, columns), generator=generator).float()
    weight = torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1)
    return x, quantize(weight, granularity)


def cast(x):
    return quantize(x, octofold.Format(granularity="1x128", power_of_two=True))


@settings(deadline=None, max_examples=40)
@given(problems())
def test_rows(problem):
    """The products of parts are the columns of the product of the whole, bit for bit."""
    size, rows, columns, granularity = problem
    x, weight = operands(rows, columns, granularity)
    parts = [shard_of(weight, -2, rank, size) for rank in range(size)]
    products = []
    for weight_part, zeros, own in parts:
        y = octofold.gemm(cast(x), weight_part, out_dtype="float32")
        assert y.shape[1] == zeros + own
        assert not y[:, :zeros].any()
        products.append(y[:, zeros:])
    whole = octofold.gemm(cast(x), weight, out_dtype="float32")
    assert torch.equal(torch.cat(products, dim=1), whole)
    assert sum(part.weight.data.numel() for part in parts) <= (rows + 127 * size) * columns


@settings(deadline=None, max_examples=40)
@given(problems())
def test_columns(problem):
    """The sum of the products of parts is the product of the whole, but for rounding."""
    size, columns, rows, granularity = problem
    x, weight = operands(rows, columns, granularity)
    total = torch.zeros(4, rows)
    for rank in range(size):
        weight_part, zeros, own = shard_of(weight, -1, rank, size)
        begin, behind = bounds_of(columns, rank, size)
        assert own == behind - begin
        own_x = torch.nn.functional.pad(x[:, begin:behind], (zeros, 0))
        total += octofold.gemm(cast(own_x), weight_part, out_dtype="float32")
    whole = octofold.gemm(cast(x), weight, out_dtype="float32")
    torch.testing.assert_close(total, whole, rtol=1e-5, atol=1e-4 * whole.abs().max().item())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_squares(granularity):
    """Rows of whole units, with zeros around, put one below the other."""
    _, weight = operands(512, 256, granularity)
    spans = [(70, 200), (300, 310)]
    parts = [squares_of(weight, -2, first, behind) for first, behind in spans]
    joined = joined_rows(parts).dequantize(torch.float32)
    values = weight.dequantize(torch.float32)
    begin = 0
    for (first, behind), piece in zip(spans, parts, strict=True):
        zeros = first % 128 if granularity == "128x128" else 0
        rows = joined[begin : begin + piece.shape[0]]
        assert torch.equal(rows[zeros : zeros + behind - first], values[first:behind])
        assert not rows[:zeros].any()
        assert not rows[zeros + behind - first :].any()
        begin += piece.shape[0]


def test_errors():
    _, weight = operands(5, 16, "128x128")
    with pytest.raises(octofold.InvalidArgumentError, match="each of 4 ranks gets some, 2 at most"):
        shard_of(weight, -2, 0, 4)
    with pytest.raises(octofold.InvalidArgumentError, match="'dim'"):
        shard_of(weight, 0, 0, 2)
