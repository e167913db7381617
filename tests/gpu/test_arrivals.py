"""Products whose rows of A arrive while they run, on one GPU. bench/gpu/run.py parallel_products
has several."""

import re

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    PAIR_NAMES,
    PAIRS,
    assert_close,
    assert_same_bits,
    candidates,
    captured,
    gemm_by,
    needs_gpu,
    normal,
    operands,
    product,
    run_python,
    skip_without_hopper,
    surrounded_copy,
    torch,
    with_data,
)

skip_without_hopper()  # whose kernels wait

# M, N, K, and shards of M / n rows: whole tiles; ends within tiles; less than a tile; one row each;
# more tiles than blocks run at one time.
SHAPES = (
    (1024, 264, 512, 4),
    (1000, 520, 1040, 4),
    (200, 264, 384, 8),
    (5, 72, 256, 5),
    (4096, 1536, 256, 2),
)


def straight(names):
    """The configurations that take arrivals: neither swapped nor split."""
    return [
        name
        for name in names
        if name is None or (".swapped" not in name and re.search(r"\.c\dx\dx1\.", name))
    ]


def there(shards, own=0):
    return octofold.Arrivals(torch.ones(shards, dtype=torch.int32, device=DEVICE), own)


def assert_arrives(names, a, b, out_dtype, shards, c=None, bias=None):
    """By each configuration as without: the same bits, whatever shard comes first."""
    assert names
    for index, name in enumerate(names):
        expected = torch.empty(a.shape[0], b.shape[0], dtype=out_dtype, device=DEVICE)
        gemm_by(name, a, b, expected, c, bias)
        for own in {0, index % shards, shards - 1}:
            out = torch.full_like(expected, torch.nan)
            gemm_by(name, a, b, out, c, bias, arrivals=there(shards, own))
            assert_same_bits(out, expected)


@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)
@pytest.mark.parametrize(("m", "n", "k", "shards"), SHAPES)
def test_every_configuration(pair, m, n, k, shards, generator):
    a, b = operands(generator, m, n, k, pair)
    names = straight(candidates(("e4m3", pair[0]), ("e4m3", pair[1]), "bfloat16"))
    assert_arrives(names, a, b, torch.bfloat16, shards)


def test_with_c_and_bias(generator):
    a, b = operands(generator, 1000, 520, 1040)
    c, bias = normal(generator, 1000, 520), normal(generator, 520)
    names = straight(
        candidates(("e4m3", "1x128"), ("e4m3", "128x128"), "float32", c="float32", bias="float32")
    )
    assert_arrives(names, a, b, torch.float32, 4, c, bias)


PLANNED = ((1000, ("1x128", "128x128")), (1024, ("128x128", "1x128")))


@pytest.mark.parametrize(("rows", "pair"), PLANNED, ids=str)
def test_planned(rows, pair, generator):
    a, b = operands(generator, rows, 520, 1040, pair)
    for own in range(4):
        out = octofold.gemm(a, b, arrivals=there(4, own), out_dtype="float32")
        assert_close(out, product(a, b))


@pytest.mark.parametrize("k", [1040, 1041])
def test_operands_that_threads_copy(k, generator):
    a, b = operands(generator, 1000, 264, k, ("channel", "1x128"))
    a = with_data(a, surrounded_copy(a.data, padding=4 - k % 4, offset=4))
    for own in range(4):
        out = octofold.gemm(a, b, arrivals=there(4, own), out_dtype="float32")
        assert_close(out, product(a, b))


@needs_gpu
def test_in_a_graph(generator):
    a, b = operands(generator, 1024, 520, 1040)
    expected = octofold.gemm(a, b, arrivals=there(4, 1))
    arrivals = there(4, 1)
    graph, out = captured(lambda: octofold.gemm(a, b, arrivals=arrivals))
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert_same_bits(out, expected)


# Each way to load, clusters either way, scales along K and of channels, which the epilogue reads:
# shards of whole tiles, and shards that end within a tile, and within a line of scales.
LATE = (
    (2048, 1536, 1024, ("1x128", "128x128"), 4, 1, "256x128.w2.c1x2x1.b1.early", 1),
    (2048, 1536, 1024, ("1x128", "1x128"), 4, 3, "128x128.w2.c2x1x1.b1.early", 2),
    (1000, 520, 1040, ("1x128", "128x128"), 4, 2, "128x128.w2.c1x1x1.b1.early", 3),
    (1000, 520, 1040, ("channel", "channel"), 4, 1, "128x128.w2.c1x1x1.b1.early", 4),
    (1000, 520, 1042, ("channel", "channel"), 4, 1, "128x64.w2.c1x1x1.b1.early", 5),
    (1000, 520, 1044, ("1x128", "1x128"), 8, 5, "128x64.w2.c1x1x1.b1.early", 6),
    (4096, 4096, 512, ("tensor", "tensor"), 2, 0, "128x128.w2.c1x2x1.b1.early", 7),
)


@needs_gpu
@pytest.mark.parametrize("problem", LATE, ids=[f"{p[:3]}-{p[3][0]}-{p[4]}" for p in LATE])
def test_rows_are_read_as_they_come(problem):
    script = "from tests.gpu import late_shards; late_shards.main"
    run_python(f"{script}([{problem!r}])", seconds=120)
