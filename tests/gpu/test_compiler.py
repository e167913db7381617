"""Kernels are the same whatever else the process compiles, as cuDNN does."""

import os
import subprocess
import sys

import pytest

from tests.gpu.gpu_support import needs_gpu, torch

SCRIPT = """
import sys, torch, octofold
from torch.nn.attention import SDPBackend, sdpa_kernel

def theirs():
    for size in (128, 256):
        q = torch.randn(4, 16, 4096, size, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(4, 4, 4096, size, device="cuda", dtype=torch.bfloat16)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            options = {"is_causal": True, "enable_gqa": True}
            torch.nn.functional.scaled_dot_product_attention(q, k, k, **options)

def ours(*sizes):
    q = torch.randn(1, 512, 4, sizes[0], device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, 512, 4, n, device="cuda").to(torch.float8_e4m3fn) for n in sizes)
    octofold.attention(q, k, v, causal=True)

order = sys.argv[1]
if order == "first":
    theirs()
ours(64, 64)
if order == "between":
    theirs()
ours(192, 128)
torch.cuda.synchronize()
"""


def kernels_of(folder, order):
    """The kernels that a process of its own leaves in an empty cache."""
    folder.mkdir()
    environment = {**os.environ, "OCTOFOLD_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, order]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return {file.name: file.read_bytes() for file in folder.glob("*.kernel")}


@needs_gpu
def test_kernels_are_the_same_after_cudnn(tmp_path):
    if not torch.backends.cudnn.is_available() or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("cuDNN compiles its attention for GPUs from 9.0 on")
    alone = kernels_of(tmp_path / "alone", "alone")
    assert alone
    for order in ("first", "between"):
        assert kernels_of(tmp_path / order, order) == alone, order
