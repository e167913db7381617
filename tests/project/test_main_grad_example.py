"""examples/python/main_grad_optimizer.py on the CPU."""

import re
import sys

import pytest
from project_support import REPOSITORY, run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


def test_main_grad_trains_as_grad_does():
    script = REPOSITORY / "examples" / "python" / "main_grad_optimizer.py"
    # Of matrices so small, threads cost more than they bring.
    output = run(sys.executable, script, "--device", "cpu", "--steps", "30", OMP_NUM_THREADS="1")
    losses = re.findall(r"^loss with .*: +(\d\.\d+) -> (\d\.\d+)$", output, re.M)
    assert len(losses) == 2, output
    assert all(float(last) < 0.8 * float(first) for first, last in losses)
