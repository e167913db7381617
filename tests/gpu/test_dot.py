"""The dot product of torch's vectors against FP64: every pair of types and granularities, any
alignment, and the same bits again."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    GRANULARITIES,
    ON_GPU,
    assert_same_bits,
    dequantized,
    needs_gpu,
    normal,
    operand,
    poison,
    torch,
)

SIZES = (0, 1, 127, 128, 1000, 8192, 8193, 100_003)


def values_of(x):
    if isinstance(x, octofold.ScaledTensor):
        return dequantized(x)[0]
    return x.double()


def assert_dot(a, b, **options):
    left, right = values_of(a), values_of(b)
    actual = octofold.ops.dot(a, b, **options)
    assert actual.dtype is torch.float32
    assert actual.device == left.device
    error = abs(float(actual) - float(left @ right))
    assert error <= 2e-6 * float(left.abs() @ right.abs()) + 1e-30
    return actual


def row_of(generator, size, dtype, granularity):
    if granularity is None:
        return (4 * normal(generator, size)).to(DTYPES[dtype])
    return operand(generator, 1, size, dtype, granularity)


@pytest.mark.parametrize("b_dtype", DTYPES)
@pytest.mark.parametrize("a_dtype", DTYPES)
def test_of_every_pair_of_types(a_dtype, b_dtype, generator):
    for size in SIZES:
        a, b = (row_of(generator, size, dtype, None) for dtype in (a_dtype, b_dtype))
        assert_same_bits(assert_dot(a, b), assert_dot(a, b))


@pytest.mark.parametrize("b_granularity", [None, *GRANULARITIES])
@pytest.mark.parametrize("a_granularity", GRANULARITIES)
def test_of_every_pair_of_granularities(a_granularity, b_granularity, generator):
    for size in SIZES:
        a = row_of(generator, size, "e4m3", a_granularity)
        for dtype in ("e5m2", "float32", "bfloat16")[: 1 if b_granularity else 3]:
            b = row_of(generator, size, dtype, b_granularity)
            assert_same_bits(assert_dot(a, b), assert_dot(a, b))
            assert_dot(b, a)


def placed(x, offset):
    """A copy that begins so many elements behind an aligned address, among NaN."""
    memory = poison(x.numel() + 64, x.dtype)
    copy = memory[offset : offset + x.numel()]
    copy.copy_(x)
    return copy


def test_of_vectors_anywhere(generator):
    for size in (1, 15, 130, 8300, 50_000):
        a, b = row_of(generator, size, "e4m3", None), row_of(generator, size, "float32", None)
        for a_offset, b_offset in ((1, 0), (0, 1), (3, 2), (16, 4), (4, 4)):
            assert_dot(placed(a, a_offset), placed(b, b_offset))
            assert_dot(placed(a, a_offset), placed(a, b_offset))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_decodes_every_code(dtype):
    codes = torch.arange(256, device=DEVICE, dtype=torch.int32).to(torch.uint8).view(DTYPES[dtype])
    one = torch.ones(1, device=DEVICE)
    for code in range(256):
        expected = codes[code : code + 1].float()
        for other in (one, one.to(DTYPES[dtype])):
            actual = octofold.ops.dot(codes[code : code + 1], other)[None]
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_nan_reaches_the_sum(generator):
    for size in (1, 300, 20_000):
        a = operand(generator, 1, size, "e4m3", "1x128")
        a.data.view(torch.uint8)[0, size // 2] = 0x7F
        b = row_of(generator, size, "float16", None)
        assert bool(octofold.ops.dot(a, b).isnan())


@pytest.mark.skipif(not ON_GPU, reason="takes the CPU too long")
def test_of_long_vectors(generator):
    # Parts of several spans: more than 1024 of 8192 elements.
    for size in (8192 * 1024, 8192 * 1024 + 1, 30_000_001):
        a, b = (row_of(generator, size, dtype, None) for dtype in ("e4m3", "e5m2"))
        assert_same_bits(assert_dot(a, b), assert_dot(a, b))


def test_writes_into_out(generator):
    for size in (0, 100, 20_000):
        a, b = row_of(generator, size, "e4m3", "1x128"), row_of(generator, size, "float32", None)
        memory = torch.full((3,), torch.nan, device=DEVICE)
        assert octofold.ops.dot(a, b, out=memory[1:2]).data_ptr() == memory[1:2].data_ptr()
        assert memory.isnan().tolist() == [True, False, True]
        assert_same_bits(memory[1], octofold.ops.dot(a, b))


@needs_gpu
def test_in_a_graph_and_on_a_stream(generator):
    a, b = (row_of(generator, 50_000, "e4m3", "1x128") for _ in range(2))
    expected = octofold.ops.dot(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = octofold.ops.dot(a, b)
    captured.fill_(torch.nan)
    graph.replay()
    assert_same_bits(captured, expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    results = [octofold.ops.dot(a, b, stream=stream)]
    results.append(octofold.ops.dot(a, b, out=torch.empty_like(expected), stream=stream))
    torch.cuda.synchronize()
    for result in results:
        assert_same_bits(result, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
def test_compiles_whole(backend, generator):
    def sums(x, y):
        return octofold.ops.dot(x, y), octofold.ops.dot(x, y, out=torch.empty(1, device=x.device))

    torch.compiler.reset()
    compiled = torch.compile(sums, fullgraph=True, dynamic=True, backend=backend)
    for size in (300, 20_000, 7):
        x, y = normal(generator, size), normal(generator, size)
        for left, right in zip(compiled(x, y), sums(x, y), strict=True):
            assert_same_bits(left, right)


def test_has_no_gradient(generator):
    x = normal(generator, 8).requires_grad_()
    with pytest.raises(RuntimeError, match=r"octofold\.dot has no gradient"):
        octofold.ops.dot(x, x).backward()
