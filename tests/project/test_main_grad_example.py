"""examples/python/main_grad_optimizer.py on the CPU."""

import re
import sys

import pytest
from project_support import REPOSITORY, run

pytest.importorskip("torch")


def test_main_grad_trains_as_grad_does() -> None:
    script = REPOSITORY / "examples" / "python" / "main_grad_optimizer.py"
    losses = {}
    for steps in ("1", "30"):
        output = run(sys.executable, script, "--device", "cpu", "--steps", steps)
        found = re.findall(r"^loss with .*: +(\d\.\d+)$", output, re.M)
        losses[steps] = [float(loss) for loss in found]
        assert len(losses[steps]) == 2, output
    assert all(last < 0.8 * first for first, last in zip(*losses.values(), strict=True))
