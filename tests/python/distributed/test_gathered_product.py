"""Products of rows that are gathered, by two processes: with gloo on the CPU, or on two GPUs.
bench/gpu/run.py parallel_products checks the bits of many sizes there."""

import octofold
import pytest
import torch
from octofold.distributed import GatheredProduct

from tests.python.distributed.rank_processes import DEVICE, here, on_two_ranks

PROCESSES = 2
ROWS, COLUMNS, OUTPUTS = 40, 300, 72


def shard(rank):
    generator = torch.Generator().manual_seed(rank)
    return here(torch.randn(ROWS, COLUMNS, generator=generator))


@on_two_ranks
def test_products(rank):
    whole = torch.cat([shard(each) for each in range(PROCESSES)])
    generator = torch.Generator().manual_seed(10 + rank)  # each rank has weights of its own
    w = octofold.quantize(here(torch.randn(OUTPUTS, COLUMNS, generator=generator)), "128x128")
    bias = here(torch.randn(OUTPUTS, generator=generator))
    # A GPU sums few rows in another order if all of them are there: hence these arrivals.
    arrivals = octofold.Arrivals(here(torch.ones(PROCESSES, dtype=torch.int32)), rank)
    for words in ("1x128", "channel", "e5m2 1x128"):
        product = GatheredProduct(ROWS, COLUMNS, words)
        assert product.overlaps == (DEVICE == "cuda")
        codes = octofold.quantize(whole, words)
        expected = octofold.gemm(codes, w, bias=bias, arrivals=arrivals)
        x = shard(rank)
        for _ in range(3):
            assert torch.equal(product(x, w, bias=bias), expected)
        assert torch.equal(product(octofold.quantize(x, words), w, bias=bias), expected)
        out = here(torch.empty(PROCESSES * ROWS, OUTPUTS, dtype=torch.bfloat16))
        assert product(x, w, bias=bias, out=out) is out
        assert torch.equal(out, expected)


@on_two_ranks
def test_errors(rank):
    refuses = pytest.raises(octofold.InvalidArgumentError, match="GatheredProduct: argument 'rows'")
    with refuses:
        GatheredProduct(0, 5)
    with refuses:
        GatheredProduct(4 + rank, 5)
    with pytest.raises(octofold.InvalidArgumentError, match="'format': expected one of"):
        GatheredProduct(4, 5, "128x128")
    with pytest.raises(octofold.UnsupportedError, match=r"'overlap': expected GPUs.* got cpu"):
        GatheredProduct(4, 5, device="cpu", overlap=True)
    product = GatheredProduct(4, 128, device="cpu")
    w = octofold.quantize(torch.randn(8, 128), "128x128")
    for x, message in (
        (torch.randn(5, 128), r"'x': expected shape \[4, 128\], a rank's shard, got \[5, 128\]"),
        (octofold.quantize(torch.randn(4, 128), "channel"), "'x': expected codes of e4m3 with 1x1"),
        (octofold.quantize(torch.randn(4, 128), "e5m2"), "'x': expected codes of e4m3"),
    ):
        with pytest.raises(octofold.InvalidArgumentError, match=message):
            product(x, w)
    with pytest.raises(octofold.InvalidArgumentError, match="'x': expected a tensor on cpu, got m"):
        product(torch.randn(4, 128, device="meta"), w)
