"""Helpers that the tests of this folder share: the device, operands, the FP64 reference.

A test module that imports this is skipped where there is no GPU that Octofold has kernels for.
OCTOFOLD_TEST_DEVICE=cpu runs what can run on the CPU backend, to debug the tests themselves.
"""

import contextlib
import ctypes
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import octofold
import pytest
from octofold import tuning

from tests.cases.gemm import PAIRS as PAIRS
from tests.gpu.targets import candidate_names, has_bfloat16, is_hopper
from tests.python import judge
from tests.python.casting import GRANULARITIES as GRANULARITIES

torch = pytest.importorskip("torch")

DEVICE = torch.device(os.environ.get("OCTOFOLD_TEST_DEVICE", "cuda"))
ON_GPU = DEVICE.type == "cuda"


def _why_not() -> str | None:
    if not ON_GPU:
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU: torch.cuda.is_available() is false"
    backend = octofold.info().gpus[torch.cuda.current_device()].backend
    return None if backend.available else f"no kernels for this GPU: {backend.detail}"


if reason := _why_not():
    pytest.skip(reason, allow_module_level=True)


def _why_without(operation: str) -> str | None:
    if not ON_GPU:
        return None
    support = octofold.info().gpus[torch.cuda.current_device()].operations[operation]
    return None if support.available else f"no {operation}: {support.detail}"


def skip_without(operation: str) -> None:
    """Skips the module that calls it where the GPU has no kernels of the operation."""
    if reason := _why_without(operation):
        pytest.skip(reason, allow_module_level=True)


def skip_without_hopper() -> None:
    """Skips the module that calls it on a GPU without Hopper's own kernels."""
    if ON_GPU and not is_hopper():
        pytest.skip("Hopper's own kernels", allow_module_level=True)


def needs(operation: str) -> pytest.MarkDecorator:
    """Skips a test where the GPU has no kernels of the operation."""
    reason = _why_without(operation)
    return pytest.mark.skipif(reason is not None, reason=reason or "")


# Types of 16 bits that the GPU multiplies; the other is refused.
HALVES = ("float16", "bfloat16") if not ON_GPU or has_bfloat16() else ("float16",)
where_bfloat16_is_refused = pytest.mark.skipif(
    "bfloat16" in HALVES, reason="products of bfloat16 are refused before compute capability 8.0"
)
refuses_bfloat16 = functools.partial(pytest.raises, octofold.UnsupportedError, match=r"8\.0")

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="CUDA streams and graphs need a GPU")

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
PAIR_NAMES = ["x".join(pair) for pair in PAIRS]
NAN_CODE = 0x7F  # of both FP8 formats


def normal(generator, *shape, dtype="float32"):
    return torch.randn(shape, generator=generator, device=DEVICE).to(DTYPES[dtype])


def operand(generator, rows, cols, dtype="e4m3", granularity="1x128", power_of_two=False):
    """Codes and scales drawn at random, without a cast: the scales of neighbours differ by up to
    16 times, so that one that is taken for another shows."""
    codes = (32 * normal(generator, rows, cols)).to(DTYPES[dtype])
    shape = octofold.ops.scale_shape(granularity, rows, cols)
    exponents = 4 * torch.rand(shape, generator=generator, device=DEVICE) - 8
    scale = torch.exp2(exponents.round() if power_of_two else exponents)
    return octofold.ScaledTensor(codes, scale, granularity)


def operands(generator, m, n, k, pair=("1x128", "128x128"), dtypes=("e4m3", "e4m3")):
    """A [m, k] and B [n, k]."""
    shapes = ((m, k), (n, k))
    return [
        operand(generator, *shape, dtype, granularity)
        for shape, dtype, granularity in zip(shapes, dtypes, pair, strict=True)
    ]


def rows_major(scale):
    """The same values with the rows of the matrix next to each other: strides (1, rows)."""
    return scale.t().contiguous().t()


def poison(count, dtype):
    """Memory full of NaN."""
    if dtype.itemsize == 1:
        return torch.full((count,), NAN_CODE, dtype=torch.uint8, device=DEVICE).view(dtype)
    return torch.full((count,), torch.nan, dtype=dtype, device=DEVICE)


class Surrounded:
    """A matrix in the midst of poison: `view` begins `offset` elements behind an aligned address,
    and `padding` elements follow each row."""

    def __init__(self, rows, cols, dtype, padding=0, offset=0):
        stride = cols + padding
        self._memory = poison(rows * stride + offset + padding, dtype)
        self.view = self._memory.as_strided((rows, cols), (stride, 1), offset)

    def assert_only_view_written(self):
        self.assert_written(self.view.numel())

    def assert_written(self, count):
        assert int((~torch.isnan(self._memory)).sum()) == count


def surrounded_copy(matrix, padding=0, offset=0):
    copy = Surrounded(*matrix.shape, matrix.dtype, padding, offset)
    copy.view.copy_(matrix)
    return copy.view


def with_data(x, data):
    return dataclasses.replace(x, data=data)


def with_scale(x, scale):
    return dataclasses.replace(x, scale=scale)


def dequantized(x):
    """data × scale in FP64."""
    rows, cols = x.shape
    scale = x.scale.double()
    if x.granularity == "channel":
        scale = scale[:, None]
    elif x.granularity != "tensor":
        scale = scale.repeat_interleave(128, dim=1)[:, :cols]
        if x.granularity == "128x128":
            scale = scale.repeat_interleave(128, dim=0)[:rows]
    return x.data.float().double() * scale


class Product(NamedTuple):
    """The value that a product has to have, in FP64."""

    value: torch.Tensor
    terms: torch.Tensor  # the sum of the magnitudes that each element sums


def product(a, b, *addends):
    """a · bᵀ + addends, each a matrix, a row or None."""
    left, right = dequantized(a), dequantized(b)
    value, terms = left @ right.T, left.abs() @ right.abs().T
    for addend in addends:
        if addend is not None:
            value += addend.double()
            terms += addend.double().abs()
    return Product(value, terms)


def assert_close(out, expected):
    """Everything written, and as close to a Product as docs/numerics.md promises."""
    dtype = str(out.dtype).removeprefix("torch.")
    limit = judge.TENSOR_CORE_ACCUMULATION if out.is_cuda else judge.ACCUMULATION
    judge.assert_close(out.double(), expected.value, expected.terms, dtype, limit)


def check_product(a, b, out_dtype="bfloat16"):
    """Multiplies into poisoned memory and compares."""
    out = Surrounded(a.shape[0], b.shape[0], DTYPES[out_dtype])
    assert octofold.gemm(a, b, out=out.view) is out.view
    assert_close(out.view, product(a, b))


def assert_fast_accumulation_close(out, expected):
    """Judges a product where the tensor core may sum all of K, with about 14 significant bits."""
    dtype = str(out.dtype).removeprefix("torch.")
    parts = out.double(), *expected
    judge.assert_elements_close(*parts, dtype, judge.FAST_ACCUMULATION)
    assert judge.norm(parts[0] - expected.value) <= 1e-2 * judge.norm(expected.value)


def candidates(
    a,
    b,
    out,
    *,
    c=None,
    bias=None,
    fast=False,
    operands_fit_tma=True,
    output_fits_tma=True,
    c_fits_tma=True,
):
    """Names of the kernels' configurations for a product of such operands, each a dtype and a
    granularity, into such an output. The CPU backend has one way, which has no name."""
    addends = {"c": c, "bias": bias}
    flags = {
        "fast_accumulation": fast,
        "operands_unaligned": not operands_fit_tma,
        "out_unaligned": not output_fits_tma,
        "c_unaligned": not c_fits_tma,
    }
    return product_candidates(
        "gemm",
        f"a {' '.join(a)}, b {' '.join(b)}, out {out}",
        *(f"{name} {dtype}" for name, dtype in addends.items() if dtype),
        *(flag for flag, is_set in flags.items() if is_set),
    )


def product_candidates(operation, *phrases):
    """The candidates of this GPU for products that have these phrases in their text."""
    return candidate_names(operation, *phrases) if ON_GPU else [None]


def plain(name):
    """The candidate of Hopper of this name, which sums K in one piece. Elsewhere all do."""
    return name if ON_GPU and is_hopper() else None


def gemm_by(candidate, a, b, out, c=None, bias=None, fast=False, arrivals=None):
    """octofold.gemm(out=) by the configuration of that name."""
    addends = {"c": c, "bias": bias}
    with tuning.using(candidate):
        octofold.gemm(a, b, **addends, fast_accumulation=fast, arrivals=arrivals, out=out)


def bits(tensor):
    """For comparisons that tell -0 from 0 and have NaN equal itself."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def assert_same_bits(left, right):
    assert left.dtype is right.dtype
    assert torch.equal(bits(left), bits(right))


def wait_for(word, stream):
    """The stream goes on when the word, in pinned memory, is 1 or more."""
    error = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2(
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.c_uint64(word.data_ptr()),
        ctypes.c_uint32(1),
        ctypes.c_uint(0),
    )
    assert error == 0


class Held:
    """A CUDA stream that does not go on before the `with` block ends. The block fails if something
    in it has waited for the stream."""

    PATIENCE = 20  # seconds; then the stream goes on, so that nothing hangs

    def __init__(self, stream):
        self._stream = stream
        self._flag = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._waited = False
        self._timer = threading.Timer(self.PATIENCE, self._give_up)

    def __enter__(self):
        wait_for(self._flag, self._stream)
        self._timer.start()

    def __exit__(self, error, *_):
        self._timer.cancel()
        self._flag[0] = 1
        if error is None:
            assert not self._waited, "something waited for the stream"

    def _give_up(self):
        self._waited = True
        self._flag[0] = 1


def run_python(script, seconds=200):
    """Run in an interpreter of its own, which finds the tests' package and has to end well. If it
    hangs, it and its children say where."""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        output, _ = process.communicate()
        pytest.fail(f"after {seconds} s:\n{output}")
    assert process.returncode == 0, output


@contextlib.contextmanager
def nothing_waits():
    """In which it is an error that the host waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(call):
    """A graph of a call, and the call's results, after calls on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results
