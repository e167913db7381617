"""Shards that reach a product while it runs, on one GPU; test_arrivals.py runs this in a process
of its own, which can be ended if a kernel should wait for ever.

What arrives comes from pinned memory, so that copy engines bring it: copies from the GPU's own
memory may be kernels, for which a waiting product leaves no room. A stream writes the flags itself.
"""

import ctypes
import threading
import time

import octofold
import torch
from gpu_support import NAN_CODE, assert_same_bits, gemm_by, operands

PATIENCE = 20  # seconds; then all is let through, so that nothing hangs


class Stream:
    """A stream beside the product's."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self._driver = ctypes.CDLL("libcuda.so.1")

    def _call(self, name, address, value):
        arguments = (
            ctypes.c_void_p(self.stream.cuda_stream),
            ctypes.c_uint64(address),
            ctypes.c_uint32(value),
            ctypes.c_uint(0),
        )
        assert getattr(self._driver, name)(*arguments) == 0, name

    def wait_for(self, word):
        """Goes on when the word, in pinned memory, is 1 or more."""
        self._call("cuStreamWaitValue32_v2", word.data_ptr(), 1)

    def set(self, flag):
        self._call("cuStreamWriteValue32_v2", flag.data_ptr(), 1)


def rows_of(shard, shards, tensor):
    rows = tensor.shape[0] // shards
    return tensor[shard * rows : (shard + 1) * rows]


def check(m, n, k, pair, shards, own, candidate, seed):
    """Rows of A in the midst of NaN until they come, each 5 ms after the one before."""
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = operands(generator, m, n, k, pair)
    out_dtype = torch.bfloat16
    expected = torch.empty(m, n, dtype=out_dtype, device="cuda")
    gemm_by(candidate, a, b, expected)
    codes = torch.full((m, k), NAN_CODE, dtype=torch.uint8, device="cuda")
    scale = torch.full_like(a.scale, torch.nan) if pair[0] != "tensor" else a.scale.clone()
    late = octofold.ScaledTensor(codes.view(torch.float8_e4m3fn), scale, a.granularity)
    pinned_codes, pinned_scale = (x.cpu().pin_memory() for x in (a.data.view(torch.uint8), a.scale))
    flags = torch.ones(shards, dtype=torch.int32, device="cuda")
    arrivals = octofold.Arrivals(flags, own)
    out = torch.full_like(expected, torch.nan)
    gemm_by(candidate, late, b, out, arrivals=arrivals)  # loads the kernel
    flags.zero_()
    out.fill_(torch.nan)
    torch.cuda.synchronize()

    gates = torch.zeros(shards, dtype=torch.int32).pin_memory()
    side = Stream()
    with torch.cuda.stream(side.stream):
        for i in range(shards):
            shard = (own + i) % shards
            side.wait_for(gates[i])
            rows_of(shard, shards, codes).copy_(
                rows_of(shard, shards, pinned_codes), non_blocking=True
            )
            if pair[0] != "tensor":
                # Whole columns of 1x128 scales lie in memory: copies of two dimensions.
                rows_of(shard, shards, scale).copy_(
                    rows_of(shard, shards, pinned_scale), non_blocking=True
                )
            side.set(flags[shard])
    done = torch.cuda.Event()
    gemm_by(candidate, late, b, out, arrivals=arrivals)
    done.record()
    for i in range(shards):
        time.sleep(0.005)
        assert not done.query(), "the product ended before its last rows came"
        gates[i] = 1
    timer = threading.Timer(PATIENCE, lambda: gates.fill_(1))
    timer.start()
    done.synchronize()
    timer.cancel()
    assert_same_bits(out, expected)
    assert flags.tolist() == [1] * shards


def main(problems):
    for problem in problems:
        check(*problem)
        print(problem, "is right", flush=True)
