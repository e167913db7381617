"""gemm() on a GPU finds its fastest kernel by itself."""

import os

from tests.gpu.gpu_support import needs_gpu, run_python, skip_without

skip_without("products")

AUTOMATIC = """
import json, os
os.environ.update({environment!r})
import octofold, torch
x, w = (torch.randn(rows, 1024, device="cuda") for rows in (96, 512))
a, b = octofold.quantize(x), octofold.quantize(w, "128x128")
expected = (a.dequantize() @ b.dequantize().t()).float()
results = []
for call in range(20):
    results.append(octofold.gemm(a, b, out_dtype="float32"))
    torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
out = torch.empty_like(results[-1])
with torch.cuda.graph(graph):
    octofold.gemm(a, b, out=out)
graph.replay()
for result in (*results, out):
    assert (result - expected).norm() < 1e-3 * expected.norm()
# It is decided, so bits are the same from here on.
assert torch.equal(out, results[-1]) and torch.equal(results[-2], results[-1])
table = octofold.tuning.table()
(product,) = json.loads(table.file.read_text())["products"].values()
assert 0 < product["microseconds"] <= product["planned_microseconds"], product
with octofold.tuning.using(product["candidate"]):
    assert torch.equal(octofold.gemm(a, b, out_dtype="float32"), out)
"""


@needs_gpu
def test_kernels_are_tried_and_the_fastest_is_kept(tmp_path):
    own = {"OCTOFOLD_TUNING": "auto", "OCTOFOLD_CACHE_DIR": str(tmp_path)}
    run_python(AUTOMATIC.format(environment={**os.environ, **own}))
