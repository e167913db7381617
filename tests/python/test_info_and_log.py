"""The library's reports of itself and of its work."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import octofold
import pytest
from safetensors.numpy import save_file


def widest_vectors() -> str:
    """By what Linux says of the processor."""
    if platform.machine() != "x86_64":
        return "NEON"
    flags = set(re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "AVX-512"
    return "AVX2" if {"avx2", "fma", "f16c"} <= flags else "SSE2"


def test_info_says_what_is_here_and_why_not_more():
    info = octofold.info()
    assert info.version == octofold.__version__
    assert info.cpu.available
    assert info.cpu.detail == f"{widest_vectors()} vectors"
    assert info.cpu_threads >= 1
    for part in (info.driver, info.nvrtc, *(gpu.backend for gpu in info.gpus)):
        assert part.detail
        assert str(part).startswith("not available: ") is not part.available
    lines = repr(info).splitlines()
    assert lines[0] == f"Octofold {octofold.__version__}"
    assert [line.split()[0] for line in lines[1:4]] == ["cpu", "driver", "nvrtc"]
    assert len(lines) == 4 + len(info.gpus)


def test_gpu_describes_itself():
    backend = octofold.Component(False, "no kernels")
    gpu = octofold.Gpu(0, "H200", 9, 0, 132, 139 * 2**30, backend)
    assert str(gpu) == (
        "H200, compute capability 9.0, 132 multiprocessors, 139.0 GiB; "
        "backend: not available: no kernels"
    )


def test_gpu_says_what_it_lacks():
    there = ("casts", "products", "routing", "products with FP8 weights")
    operations = dict.fromkeys(there, octofold.Component(True, ""))
    operations["grouped products"] = octofold.Component(False, "expected 9.0")
    backend = octofold.Component(True, "casts")
    gpu = octofold.Gpu(0, "RTX 4060", 8, 9, 24, 8 * 2**30, backend, operations)
    assert str(gpu).endswith(
        "; backend: casts; grouped products not available: expected 9.0; linear layers with "
        "trained weights: native; linear layers with FP8 weights: native; experts with trained "
        "weights: left; experts with FP8 weights: weight-only"
    )


@pytest.fixture
def warn(tmp_path):
    """Does something that the library logs a warning about."""
    save_file({"a.weight": np.ones((4, 4), np.float32)}, tmp_path / "in.safetensors")
    outputs = iter(range(100))

    def act():
        output = tmp_path / f"{next(outputs)}.safetensors"
        octofold.quantize_checkpoint(tmp_path / "in.safetensors", output, skip=["nothing*"])

    yield act
    octofold.set_log_handler(None)


def test_log_handler(warn):
    messages = []
    octofold.set_log_handler(lambda level, message: messages.append((level, message)))
    warn()
    assert [level for level, _ in messages] == ["warning"]
    assert "nothing*" in messages[0][1]
    assert type(messages[0][1]) is not bytes
    octofold.set_log_handler(None)
    warn()
    assert len(messages) == 1


def test_log_handler_that_raises(warn):
    def raise_value_error(level, message):
        raise ValueError("not " + message)

    octofold.set_log_handler(raise_value_error)
    with pytest.raises(ValueError, match=r"not .*nothing\*"):
        warn()


def test_log_handler_at_exit():
    """An installed handler does not outlive the interpreter."""
    script = "import octofold; octofold.set_log_handler(lambda level, message: None)"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, timeout=60, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
