"""Streams given as arguments: where the work goes, and whose memory it is."""

import octofold
import pytest

from tests.gpu.gpu_support import (
    Held,
    assert_same_bits,
    needs,
    needs_gpu,
    normal,
    operands,
    poison,
    torch,
)

pytestmark = needs_gpu

SOME_TIME = 10**8  # clock cycles: about 50 ms


class Protocol:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


@needs("products")
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


@needs("products")
def test_the_current_stream_may_be_named(generator):
    a, b = operands(generator, 64, 256, 512)
    expected = octofold.gemm(a, b)
    assert_same_bits(octofold.gemm(a, b, stream=torch.cuda.current_stream()), expected)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        out = octofold.gemm(a, b, stream=0)  # the legacy default stream
    torch.cuda.default_stream().synchronize()
    assert_same_bits(out, expected)


def test_inputs_outlive_the_stream_given(generator):
    """Their memory is freed by Python while the stream has not begun."""
    x = normal(generator, 512, 1024)
    expected = octofold.quantize(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SOME_TIME)
    given = x.clone()
    torch.cuda.current_stream().synchronize()
    cast = octofold.quantize(given, stream=stream)
    del given
    poison(x.numel(), torch.float32)  # takes what was freed, if anything was
    stream.synchronize()
    assert_same_bits(cast.data, expected.data)


@needs("products")
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


def test_scales_of_casts_have_the_layout_that_is_promised(generator):
    cast = octofold.quantize(normal(generator, 130, 300))
    assert cast.scale.stride() == (1, 132)
    x = normal(generator, 130, 300)
    both = octofold.ops.cast(x, rows="1x128", transposed="1x128")[:2]
    assert [x.scale.stride() for x in both] == [(1, 132), (1, 300)]
    assert [x.data.stride() for x in both] == [(320, 1), (160, 1)]
