"""The order of things on CUDA streams, current or given as arguments: several streams and threads,
lifetimes, fork."""

import threading

import octofold
import pytest

from tests.gpu.gpu_support import (
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


class Protocol:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


@pytest.mark.parametrize(
    "form", [lambda s: s, lambda s: s.cuda_stream, lambda s: Protocol(s.cuda_stream)]
)
def test_work_goes_to_the_stream_given(form, generator):
    """While the current one is busy."""
    x = normal(generator, 300, 1024)
    a, b = operands(generator, 300, 520, 1024)
    out = torch.empty(300, 520, dtype=torch.bfloat16, device="cuda")
    expected = octofold.gemm(a, b), octofold.quantize(x).data
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with Held(torch.cuda.current_stream()):
        results = [
            octofold.gemm(a, b, stream=form(stream)),
            octofold.gemm(a, b, out=out, stream=form(stream)),
            octofold.quantize(x, stream=form(stream)).data,
        ]
        stream.synchronize()
    for result, right in zip(results, (expected[0], expected[0], expected[1]), strict=True):
        assert_same_bits(result, right)


def test_the_current_stream_may_be_named(generator):
    a, b = operands(generator, 64, 256, 512)
    expected = octofold.gemm(a, b)
    assert_same_bits(octofold.gemm(a, b, stream=torch.cuda.current_stream()), expected)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        out = octofold.gemm(a, b, stream=0)  # the legacy default stream
    torch.cuda.default_stream().synchronize()
    assert_same_bits(out, expected)


def test_results_outlive_the_stream_that_is_current(generator):
    """Memory of the stream given is not reused while the current stream reads it."""
    a, b = operands(generator, 512, 512, 512)
    expected = octofold.gemm(a, b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    out = octofold.gemm(a, b, stream=stream)
    stream.synchronize()
    torch.cuda._sleep(SOME_TIME)
    copy = out + 0
    del out
    with torch.cuda.stream(stream):
        poison(expected.numel(), torch.bfloat16)
    torch.cuda.synchronize()
    assert_same_bits(copy, expected)


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
