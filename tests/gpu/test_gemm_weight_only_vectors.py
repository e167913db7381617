"""Products of FP8 weights and a few rows against FP64: every type of x and granularity, memory
anywhere, and the same bits again."""

import itertools

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    HALVES,
    NAN_CODE,
    ON_GPU,
    Surrounded,
    assert_same_bits,
    needs_gpu,
    operand,
    refuses_bfloat16,
    surrounded_copy,
    torch,
    where_bfloat16_is_refused,
    with_data,
)
from tests.gpu.weight_only_support import assert_product, rows_of, values_of

# One step and several; ragged in both; K of less than a unit.
SIZES = ((64, 128), (200, 1040), (37, 16), (300, 2064), (130, 5))
ROWS = (1, 2, 3, 4, 7, 8, 9, 16)


def assert_product_of(w, x, **options):
    out = octofold.gemm_weight_only(x, w, **options)
    assert_product(out, values_of(x), values_of(w))
    return out


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("x_dtype", [*HALVES, "float32", "e4m3", "e5m2"])
def test_of_every_type(x_dtype, w_dtype, granularity, generator):
    for (n, k), rows in itertools.product(SIZES, ROWS):
        w = operand(generator, n, k, w_dtype, granularity)
        x = rows_of(generator, rows, k, x_dtype)
        narrow = DTYPES[x_dtype if x_dtype in HALVES else "bfloat16"]
        for out_dtype in (torch.float32, narrow):
            out = assert_product_of(w, x, out_dtype=out_dtype)
        assert_same_bits(out, octofold.gemm_weight_only(x, w, out_dtype=narrow))
        for row in (x[0], x[-1]):
            assert_product_of(w, row, out_dtype=narrow)


@pytest.mark.parametrize("x_granularity", GRANULARITIES)
@pytest.mark.parametrize("w_granularity", GRANULARITIES)
def test_of_every_pair_of_granularities(w_granularity, x_granularity, generator):
    for (n, k), rows in itertools.product(SIZES, (1, 5, 16)):
        w = operand(generator, n, k, "e4m3", w_granularity)
        for dtype in ("e4m3", "e5m2"):
            x = rows_of(generator, rows, k, dtype, x_granularity)
            assert_product_of(w, x, out_dtype=torch.float32)


@pytest.mark.parametrize("x_dtype", ["float16", "float32", "e5m2"])
def test_of_memory_anywhere(x_dtype, generator):
    for offset, padding in ((1, 0), (3, 5), (16, 16), (4, 12), (8, 0)):
        w = operand(generator, 70, 300, "e4m3", "1x128")
        w = with_data(w, surrounded_copy(w.data, padding, offset))
        x = surrounded_copy(rows_of(generator, 3, 300, x_dtype), padding, offset)
        out = Surrounded(3, 70, torch.float32, padding, offset)
        octofold.gemm_weight_only(x, w, out=out.view)
        assert_product(out.view, values_of(x), values_of(w))
        out.assert_only_view_written()


@pytest.mark.parametrize("x_dtype", [*HALVES, "float32", "e4m3"])
@pytest.mark.parametrize("w_dtype", ["e4m3", "e5m2"])
def test_decodes_every_code(w_dtype, x_dtype):
    codes = torch.arange(256, device=DEVICE, dtype=torch.int32).to(torch.uint8)
    for place in (0, 1, 2, 3, 77, 127):
        data = torch.zeros(256, 128, dtype=torch.uint8, device=DEVICE)
        data[:, place] = codes
        w = octofold.ScaledTensor(
            data.view(DTYPES[w_dtype]), torch.ones(1, device=DEVICE), "tensor"
        )
        x = torch.zeros(1, 128, device=DEVICE)
        x[0, place] = 1
        out = octofold.gemm_weight_only(x.to(DTYPES[x_dtype]), w, out_dtype=torch.float32)
        expected = codes.view(DTYPES[w_dtype]).float()[None]
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@where_bfloat16_is_refused
def test_refuses_bfloat16(generator):
    w = operand(generator, 64, 128)
    for rows in (1, 16):
        x = rows_of(generator, rows, 128, "bfloat16")
        with refuses_bfloat16():
            octofold.gemm_weight_only(x, w)


def test_nan_stays_in_its_row(generator):
    for x_dtype in ("float16", "float32"):
        w = operand(generator, 100, 700, "e4m3", "128x128")
        w.data.view(torch.uint8)[31, 500] = NAN_CODE
        x = rows_of(generator, 2, 700, x_dtype)
        out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
        assert out.isnan().nonzero().tolist() == [[0, 31], [1, 31]]


def test_without_depth_the_sum_is_zero(generator):
    w = operand(generator, 20, 0, "e4m3", "tensor")
    out = octofold.gemm_weight_only(rows_of(generator, 2, 0, "float16"), w, out_dtype=torch.float32)
    assert out.shape == (2, 20)
    assert not bool(out.any())


@pytest.mark.skipif(not ON_GPU, reason="takes the CPU too long")
def test_of_large_matrices(generator):
    for (n, k), rows, x_dtype in itertools.product(
        ((8192, 8192), (16384, 4096)), (1, 4, 16), (*HALVES, "float32", "e4m3")
    ):
        w = operand(generator, n, k, "e4m3", "128x128")
        x = rows_of(generator, rows, k, x_dtype)
        out = assert_product_of(w, x, out_dtype=torch.float32)
        assert_same_bits(out, octofold.gemm_weight_only(x, w, out_dtype=torch.float32))


@pytest.mark.skipif(not ON_GPU, reason="takes 2.2 GB of memory")
def test_of_more_than_two_gigabytes(generator):
    n, k = 131_200, 16_384
    codes = torch.zeros(n, k, dtype=torch.uint8, device=DEVICE)
    codes[-300:] = 0x38  # 1
    w = octofold.ScaledTensor(
        codes.view(torch.float8_e4m3fn), torch.ones(1, device=DEVICE), "tensor"
    )
    x = torch.ones(1, k, dtype=torch.float16, device=DEVICE)
    out = octofold.gemm_weight_only(x, w, out_dtype=torch.float32)
    assert not bool(out[0, :-300].any())
    assert out[0, -300:].unique().tolist() == [k]


@needs_gpu
def test_in_a_graph_and_on_a_stream(generator):
    w, x = operand(generator, 300, 1040), rows_of(generator, 2, 1040, "float16")
    expected = octofold.gemm_weight_only(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = octofold.gemm_weight_only(x, w)
    captured.fill_(torch.nan)
    graph.replay()
    assert_same_bits(captured, expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    result = octofold.gemm_weight_only(x, w, stream=stream)
    torch.cuda.synchronize()
    assert_same_bits(result, expected)
