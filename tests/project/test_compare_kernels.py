"""The comparison of kernels sees those that have grown, and nothing in what is the same."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.project.project_support import REPOSITORY, outcome

pytestmark = pytest.mark.slow

pytest.importorskip("nvidia", reason="needs NVRTC: pip install nvidia-cuda-nvrtc")

SCRIPT = REPOSITORY / "scripts" / "compare_kernels.py"
KERNEL = Path("kernels", "sm90", "kernel.h")
FEW = "64x16/1 cluster 1x1, Channel·Channel, BFloat16"


@pytest.fixture
def sources(tmp_path):
    for folder in ("kernels", "include"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    return tmp_path


def compare(old, new, kernels=FEW):
    return outcome(sys.executable, SCRIPT, "--filter", kernels, old, new)


def add_to_kernel(sources, statements):
    start = "  if (threadIdx.x < 32) smem.init_barriers(P::kArrivalsOfStage);\n"
    text = (sources / KERNEL).read_text()
    assert text.count(start) == 1
    (sources / KERNEL).write_text(text.replace(start, statements + start))


def test_the_same_sources(sources):
    result = compare(REPOSITORY, sources)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "most instructions 1.000 of what they were" in result.stdout


def test_more_instructions(sources):
    add_to_kernel(sources, 32 * 'asm volatile("nanosleep.u32 1;");\n')
    result = compare(REPOSITORY, sources)
    assert result.returncode == 1
    assert "BFloat16  <-- instructions" in result.stdout
    assert compare(sources, REPOSITORY).returncode == 0  # shorter


def test_more_memory(sources):
    array = "volatile int stack[64];\nstack[threadIdx.x % 64] = 1;\n"
    add_to_kernel(sources, array)
    result = compare(REPOSITORY, sources)
    assert result.returncode == 1
    assert "stack or spills" in result.stdout


def test_a_kernel_that_does_not_compile(sources):
    add_to_kernel(sources, "no_such_function();\n")
    result = compare(REPOSITORY, sources)
    assert result.returncode == 1
    assert "not compiled: kernels/sm90/kernel.h" in result.stdout


def test_nothing_to_compare():
    result = compare(REPOSITORY, REPOSITORY, "no kernel's name")
    assert result.returncode == 1
    assert "no kernel is to be compared" in result.stderr
