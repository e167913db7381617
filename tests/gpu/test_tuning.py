"""gemm() on a GPU follows a table of measured kernels."""

import json
import os

import octofold
import pytest
from octofold import tuning

from tests.gpu.gpu_support import needs_gpu, run_python, skip_without
from tests.gpu.targets import architecture

skip_without("products")

PROBLEM = "gemm: m 96, n 512, k 1024"

SCRIPT = """
import os
os.environ.update({environment!r})
import octofold, torch
log = []
octofold.set_log_handler(lambda level, text: log.append(text))
x, w = (torch.randn(rows, 1024, device="cuda") for rows in (96, 512))
a, b = octofold.quantize(x), octofold.quantize(w, "128x128")
out = octofold.gemm(a, b, out_dtype="bfloat16")
by_name = torch.empty_like(out)
with octofold.tuning.using({candidate!r}):
    octofold.gemm(a, b, out=by_name)
assert torch.equal(out, by_name)
assert {expected!r} in " ".join(log), log
"""


@needs_gpu
@pytest.mark.parametrize("follows", [True, False])
def test_what_is_in_the_table_is_computed(tmp_path, follows):
    gpu = octofold.info().gpus[0]
    planned = tuning.planned(PROBLEM, gpu.multiprocessors, architecture())
    other = next(name for name in tuning.candidates(PROBLEM, architecture()) if name != planned)
    number = architecture().removeprefix("sm_").removesuffix("a")
    document = {
        "octofold": octofold.__version__,
        "gpu": gpu.name if follows else "another",
        "compute_capability": f"{number[:-1]}.{number[-1]}",
        "multiprocessors": gpu.multiprocessors,
        "products": {PROBLEM: {"candidate": other}},
    }
    file = tmp_path / "table.json"
    file.write_text(json.dumps(document))
    environment = {**os.environ, "OCTOFOLD_TUNING": str(file)}
    expected = "has 1 products" if follows else "is ignored"
    candidate = other if follows else planned
    run_python(SCRIPT.format(environment=environment, candidate=candidate, expected=expected))


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
