"""Shards that reach a product while it runs, on one GPU; test_arrivals.py runs this in a process
of its own, which can be ended if a kernel should wait for ever.

What arrives comes from pinned memory, so that copy engines bring it: copies from the GPU's own
memory may be kernels, for which a waiting product leaves no room. A stream writes the flags itself.
"""

import threading
import time

import octofold
import torch
from octofold.distributed import overlap

from tests.gpu.gpu_support import NAN_CODE, assert_same_bits, gemm_by, operands, wait_for

PATIENCE = 20  # seconds; then all is let through, so that nothing hangs


def layout(scale):
    """Shape and strides: rows of 1x128 scales stand next to each other, as casts leave them."""
    rows = scale.shape[0]
    return scale.shape, (1, -(-rows // 4) * 4) if scale.dim() == 2 else scale.stride()


def pinned(tensor, shape, strides):
    copy = torch.empty_strided(shape, strides, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor)


def rows_of(shard, shards, tensor):
    rows = tensor.shape[0] // shards
    part = tensor[shard * rows : (shard + 1) * rows]
    return part if part.dim() == 2 else part[None]


def check(m, n, k, pair, shards, own, candidate, seed):
    """Rows of A in the midst of NaN until they come, each 5 ms after the one before."""
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = operands(generator, m, n, k, pair)
    expected = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    gemm_by(candidate, a, b, expected)
    codes = torch.full((m, k), NAN_CODE, dtype=torch.uint8, device="cuda")
    arriving = [(codes, pinned(a.data.view(torch.uint8), (m, k), (k, 1)))]
    scale = a.scale
    if pair[0] != "tensor":
        scale = torch.empty_strided(*layout(a.scale), device="cuda").fill_(torch.nan)
        arriving.append((scale, pinned(a.scale, *layout(a.scale))))
    late = octofold.ScaledTensor(codes.view(torch.float8_e4m3fn), scale, a.granularity)
    flags = torch.ones(shards, dtype=torch.int32, device="cuda")
    arrivals = octofold.Arrivals(flags, own)
    out = torch.empty_like(expected)
    gemm_by(candidate, late, b, out, arrivals=arrivals)  # loads the kernel
    flags.zero_()
    out.fill_(torch.nan)
    torch.cuda.synchronize()

    gates = torch.zeros(shards, dtype=torch.int32).pin_memory()
    side = torch.cuda.Stream()
    for i in range(shards):
        shard = (own + i) % shards
        wait_for(gates[i], side)
        for target, source in arriving:
            places = (rows_of(shard, shards, each) for each in (target, source))
            overlap.MatrixCopy(*places).begin(side)
        overlap.set_flag(flags, shard, side)
    done = torch.cuda.Event()
    gemm_by(candidate, late, b, out, arrivals=arrivals)
    done.record()
    timer = threading.Timer(PATIENCE, lambda: gates.fill_(1))
    timer.start()
    for i in range(shards):
        time.sleep(0.005)
        assert not done.query(), "the product ended before its last rows came"
        gates[i] = 1
    done.synchronize()
    timer.cancel()
    assert_same_bits(out, expected)
    assert flags.tolist() == [1] * shards


def main(problems):
    for problem in problems:
        check(*problem)
        print(problem, "is right", flush=True)
