"""Kernels that come with the library run on the GPU, without a compiler."""

import os

import pytest
from octofold import kernel_cache

from tests.gpu.gpu_support import needs_gpu, run_python, skip_without_hopper

skip_without_hopper()  # whose they are

SCRIPT = """
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
    run_python(SCRIPT.format(environment=environment, expected=expected))
    assert any(tmp_path.glob("*.kernel")) is not precompiled
