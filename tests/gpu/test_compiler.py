"""Kernels are the same whatever else the process compiles, as cuDNN does; those that come with the
library need no compiler."""

import os
import subprocess
import sys

import pytest
from octofold import kernel_cache

from tests.gpu.gpu_support import ON_GPU, needs_gpu, run_python, torch
from tests.gpu.targets import is_hopper

needs_hoppers = pytest.mark.skipif(ON_GPU and not is_hopper(), reason="Hopper's own kernels")

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


PRODUCTS = """
import os
os.environ.update({environment!r})
import octofold, torch
log = []
octofold.set_log_handler(lambda level, text: log.append(text))
torch.manual_seed(0)
def on_cpu(tensor):  # no kernel that casts back comes along
    return tensor.to("cpu").dequantize().to("cuda").double()
w = torch.randn(7168, 2048, device="cuda", dtype=torch.bfloat16)
b = octofold.quantize(w, "128x128")
for rows in (1, 77, 4096):
    x = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
    a = octofold.quantize(x)
    out = octofold.gemm(a, b, out_dtype="bfloat16")
    exact = on_cpu(a) @ on_cpu(b).T
    error = (out.double() - exact).norm() / exact.norm()
    assert error < 3e-3, (rows, error)
assert {expected!r} in " ".join(log), log
"""


@needs_gpu
@needs_hoppers
@pytest.mark.parametrize("precompiled", [True, False])
def test_products_need_no_compiler(tmp_path, precompiled):
    if not kernel_cache.precompiled():
        pytest.skip("this library was built without precompiled kernels")
    environment = {**os.environ, "OCTOFOLD_CACHE_DIR": str(tmp_path), "OCTOFOLD_LOG_LEVEL": "debug"}
    if precompiled:
        environment["OCTOFOLD_NVRTC"] = "/no/nvrtc.so"
    else:
        environment["OCTOFOLD_PRECOMPILED_KERNELS"] = "0"
    expected = "precompiled" if precompiled else "compiled in"
    run_python(PRODUCTS.format(environment=environment, expected=expected))
    assert any(tmp_path.glob("*.kernel")) is not precompiled
