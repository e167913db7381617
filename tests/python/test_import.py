"""The cost of `import octofold` and of `octofold --help`: an installed torch is left alone."""

import importlib.util
import subprocess
import sys

import octofold
import pytest


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    "code",
    [
        "import octofold, octofold.kernel_cache; octofold.__version__; octofold.ScaledTensor",
        "import octofold_tool.__main__ as tool; tool.build_parser().format_help()",
    ],
    ids=["import", "help"],
)
def test_neither_torch_nor_the_library_is_loaded(code):
    heavy = "{'torch', 'jax', 'tvm_ffi', 'matplotlib', 'rich'}"
    loaded = run(f"import sys; {code}; print(*({heavy} & {{*sys.modules}}))")
    assert loaded.split() == []


def test_version_is_that_of_the_library():
    assert octofold.__version__ == octofold.info().version


# Code that threads run at once in a process that has done nothing yet, each in its own thread.
AT_ONCE = {
    "first arrays": ["octofold.quantize(x) == octofold.quantize(x)"] * 4,
    "arrays while torch comes": ["import torch", "octofold.quantize(x)", "octofold.info()"],
    "tensors": ["import torch; octofold.quantize(torch.ones(4, 256))"] * 2 + ["octofold.nn"],
    "layers": [
        f"octofold.{name}  # torch" for name in ("linear", "nn", "mlp", "models", "distributed")
    ],
    "layers while torch comes": ["import torch", "octofold.experts", "octofold.nn.recipes"],
    "JAX": ["import jax", "octofold.jax.Recipe", "octofold.quantize(x)", "octofold.jax.linear"],
    "reloads": ["importlib.reload(octofold); importlib.reload(octofold)", "import torch"],
    "a module that comes": [
        "import slow",
        "assert getattr(octofold._core.frameworks.imported('slow'), 'end', True)",
    ],
}
THREADS = """
import importlib, sys, threading, time, numpy, octofold
x = numpy.ones((4, 256), numpy.float32)
sys.setswitchinterval(1e-5)
threading.excepthook = lambda raised: print(repr(raised.exc_value))
threads = [threading.Thread(target=exec, args=(code, {**globals()})) for code in CODES]
for thread in threads:
    thread.start()
    time.sleep(PAUSE)
for thread in threads:
    thread.join()
if torch := sys.modules.get("torch"):
    assert octofold.ScaledTensor in torch.serialization.get_safe_globals()
"""


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0, 0.1])
@pytest.mark.parametrize("what", AT_ONCE)
def test_no_failure_depends_on_who_came_first(what, pause, tmp_path):
    for name in ("torch", "jax"):
        if name in str(AT_ONCE[what]):
            pytest.importorskip(name)
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); end = True")
    folder = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    assert run(f"{folder}\nCODES, PAUSE = {AT_ONCE[what]!r}, {pause}\n{THREADS}") == ""


# Limits and forks, with a product before them where memory is there already.
MULTIPLY = """
import os, resource, signal, threading, numpy, octofold
def multiply():
    return round(float(octofold.gemm(x, x, out_dtype="float32")[0, 0]))
def limit_memory(more):
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))
x = octofold.quantize(numpy.ones((512, 1024), numpy.float32))
"""
NARROW = {
    "no memory": """
w = octofold.quantize(numpy.ones((8192, 1024), numpy.float32), "128x128")
out = numpy.empty((512, 8192), numpy.float32)
limit_memory(0)
try:
    octofold.gemm(x, w, out=out)
except octofold.OutOfMemoryError as error:
    print("gemm: the host has too little memory" in str(error))
""",
    "memory of an earlier call": "multiply(); limit_memory(8 << 20); print(multiply() == 1024)",
    "no threads": """
os.getuid() or os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
print(multiply() == 1024)
""",
    "forks amid products": """
threading.Thread(target=lambda: [multiply() for _ in range(100)]).start()
for _ in range(20):
    if not (child := os.fork()):
        signal.alarm(20)
        os._exit(multiply() != 1024)
    assert os.waitpid(child, 0)[1] == 0
print(True)
""",
}


@pytest.mark.parametrize("what", NARROW)
def test_products_where_little_is_left(what, monkeypatch):
    monkeypatch.setenv("OCTOFOLD_NUM_THREADS", "1" if "memory" in what else "4")
    assert run(MULTIPLY + NARROW[what]) == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["first", "between", "last"])
def test_other_libraries_are_imported_before_or_after(place):
    """Each brings a C++ run-time library, a BLAS or an NVRTC of its own. Products are right, and
    errors of C++ arrive."""
    others = [n for n in ("torch", "jax", "cupy", "tensorflow") if importlib.util.find_spec(n)]
    index = {"first": 0, "between": len(others) // 2, "last": len(others)}[place]
    others.insert(index, "octofold")
    code = (
        f"import {', '.join(others)}, numpy\n"
        "x = numpy.random.default_rng(0).standard_normal((16, 256), dtype=numpy.float32)\n"
        "x8 = octofold.quantize(x)\n"
        "wide = x8.dequantize().astype(float)\n"
        "error = abs(octofold.gemm(x8, x8, out_dtype='float32') - wide @ wide.T).max()\n"
        "try:\n"
        "    octofold.gemm(x8, octofold.quantize(x[:, :128].copy()))\n"
        "except octofold.InvalidArgumentError:\n"
        "    print(error < 1e-3)"
    )
    assert run(code) == "True\n"
