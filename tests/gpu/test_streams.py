"""The order of things on CUDA streams: graphs, several streams and threads, lifetimes, fork."""

import threading

import octofold
import pytest

from tests.gpu.gpu_support import (
    PAIR_NAMES,
    PAIRS,
    Held,
    assert_close,
    assert_same_bits,
    needs_gpu,
    normal,
    operands,
    poison,
    product,
    run_python,
    skip_without,
    torch,
)

skip_without("products")

pytestmark = needs_gpu

SOME_TIME = 10**8  # clock cycles: about 50 ms
SHAPES = ((300, 520, 1024), (64, 2112, 512), (1024, 1024, 384), (1, 4096, 2048))


@pytest.mark.parametrize("pair", PAIRS, ids=PAIR_NAMES)
def test_graph_replays_with_changed_data(pair, generator):
    m, n, k = 300, 520, 1024
    a, b = operands(generator, m, n, k, pair)
    bias = normal(generator, n)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    octofold.gemm(a, b, out=out, bias=bias)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        octofold.gemm(a, b, out=out, bias=bias)
    for _ in range(3):
        new_a, new_b = operands(generator, m, n, k, pair)
        for old, new in ((a, new_a), (b, new_b)):
            old.data.copy_(new.data)
            old.scale.copy_(new.scale)
        bias.copy_(normal(generator, n))
        out.fill_(torch.nan)
        graph.replay()
        assert_close(out, product(a, b, bias))
        assert_same_bits(octofold.gemm(a, b, bias=bias), out)


def test_graph_of_a_layer_that_allocates(generator):
    """Cast and product, their results in the graph's own memory."""
    x, w = normal(generator, 200, 700), normal(generator, 300, 700)
    weights = octofold.quantize(w, "128x128")

    def layer():
        return octofold.gemm(octofold.quantize(x), weights)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer()
    for _ in range(3):
        x.copy_(normal(generator, 200, 700))
        graph.replay()
        assert_same_bits(y, layer())


def test_graph_on_another_stream_than_captured(generator):
    a, b = operands(generator, 300, 520, 1024)
    out = torch.empty(300, 520, dtype=torch.bfloat16, device="cuda")
    expected = octofold.gemm(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):  # kernels of ours that follow one another may overlap
            octofold.gemm(a, b, out=out)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out.fill_(torch.nan)
        graph.replay()
    stream.synchronize()
    assert_same_bits(out, expected)


def test_kernels_in_a_row_see_each_other(generator):
    """Each product adds to what the one before it left, with nothing in between."""
    a, b = operands(generator, 64, 256, 512)
    step = octofold.gemm(a, b, out_dtype="float32")
    out = torch.zeros(64, 256, device="cuda")
    for _ in range(64):
        octofold.gemm(a, b, out=out, c=out)
    torch.testing.assert_close(out, 64 * step, rtol=1e-4, atol=1e-3)


def test_casts_and_products_in_a_row_see_each_other(generator):
    """Nothing waits between a cast and the product that reads it."""
    weights = octofold.quantize(normal(generator, 512, 512), "128x128")
    inputs = [normal(generator, 96, 512) for _ in range(50)]
    torch.cuda.synchronize()
    queued = [octofold.gemm(octofold.quantize(x), weights) for x in inputs]
    for x, y in zip(inputs, queued, strict=True):
        cast = octofold.quantize(x)
        torch.cuda.synchronize()
        assert_same_bits(y, octofold.gemm(cast, weights))


def test_runs_on_the_current_stream(generator):
    """While the default stream is busy, a side stream is not."""
    a, b = operands(generator, 300, 520, 1024)
    expected = octofold.gemm(a, b)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with Held(torch.cuda.default_stream()):
        with torch.cuda.stream(side):
            out = octofold.gemm(a, b)
        side.synchronize()
    assert_same_bits(out, expected)


@pytest.mark.parametrize("kind", ["torch", "address"])
def test_runs_on_the_stream_that_is_named(kind, generator):
    """While the current stream is busy; what Python frees meanwhile is not taken before it is
    read."""
    x, w = normal(generator, 300, 1024), normal(generator, 520, 1024)
    expected = octofold.gemm(octofold.quantize(x), octofold.quantize(w))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    stream = side if kind == "torch" else side.cuda_stream
    with Held(torch.cuda.current_stream()):
        cast = octofold.quantize(x, stream=stream)
        out = octofold.gemm(cast, octofold.quantize(w, stream=stream), stream=stream)
        side.synchronize()
    assert_same_bits(out, expected)


def test_does_not_synchronize(generator):
    """A call returns while the stream that it queued on is busy."""
    x, w = normal(generator, 300, 1024), normal(generator, 520, 1024)

    def layer():
        return octofold.gemm(octofold.quantize(x), octofold.quantize(w, "128x128"))

    expected = layer()
    torch.cuda.synchronize()
    with Held(torch.cuda.current_stream()):
        out = layer()
    assert_same_bits(out, expected)


def test_four_streams(generator):
    problems = [operands(generator, *shape) for shape in SHAPES]
    expected = [octofold.gemm(a, b) for a, b in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    outs = [[] for _ in problems]
    for _ in range(50):
        for stream, (a, b), out in zip(streams, problems, outs, strict=True):
            with torch.cuda.stream(stream):
                out.append(octofold.gemm(a, b))
    torch.cuda.synchronize()
    for out, right in zip(outs, expected, strict=True):
        for result in out:
            assert_same_bits(result, right)


def test_eight_threads(generator):
    """All meet problems that are new to the process at once, each on a stream of its own."""
    shapes = [(80 + 16 * i, 272, 400) for i in range(4)]
    problems = [operands(generator, *shape) for shape in shapes]
    torch.cuda.synchronize()
    start = threading.Barrier(8)
    results = [[] for _ in range(8)]
    errors = []

    def work(index):
        try:
            start.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(200):
                    a, b = problems[(index + step) % len(problems)]
                    out = octofold.gemm(a, b)
                    if step >= 190:
                        results[index].append(((index + step) % len(problems), out))
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    expected = [octofold.gemm(a, b) for a, b in problems]
    for (a, b), right in zip(problems, expected, strict=True):
        assert_close(right, product(a, b))
    for problem, out in (pair for of_thread in results for pair in of_thread):
        assert_same_bits(out, expected[problem])


def test_temporaries_of_a_side_stream_live_long_enough(generator):
    """Casts are freed by Python while the product that reads them has not begun."""
    x, w = normal(generator, 512, 1024), normal(generator, 640, 1024)
    expected = octofold.gemm(octofold.quantize(x), octofold.quantize(w))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SOME_TIME)
        out = octofold.gemm(octofold.quantize(x), octofold.quantize(w))
    for cast in (x, w):  # takes what was freed, if anything was
        poison(cast.numel(), torch.float8_e4m3fn)
    side.synchronize()
    assert_same_bits(out, expected)


def test_fork_before_cuda_is_used():
    """The CPU backend was used; then a child uses the GPU, and so does the parent afterwards."""
    script = """
import os
import numpy, octofold, torch

# NumPy's arithmetic: torch's own threads on the CPU do not survive a fork.
values = numpy.sin(numpy.arange(64 * 256, dtype=numpy.float32)).reshape(64, 256)

def layer(device):
    x = octofold.quantize(torch.from_numpy(values).to(device))
    return octofold.gemm(x, x, out_dtype="float32").cpu().numpy()

def error(device):
    return numpy.linalg.norm(layer(device) - expected) / numpy.linalg.norm(expected)

expected = layer("cpu")
child = os.fork()
if child == 0:
    try:
        os._exit(0 if error("cuda") < 1e-3 else 3)
    except BaseException as error:
        print(error, flush=True)
        os._exit(4)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert error("cuda") < 1e-3
"""
    run_python(script)


def test_exit_with_work_in_flight():
    script = """
import octofold, torch
x = octofold.quantize(torch.randn(512, 512, device="cuda"))
for _ in range(1000):
    out = octofold.gemm(x, x)
"""
    run_python(script)
