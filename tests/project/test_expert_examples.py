"""examples/python/mixture_of_experts.py on the CPU."""

import re
import subprocess
import sys

import pytest
from project_support import REPOSITORY, run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

SCRIPT = REPOSITORY / "examples" / "python" / "mixture_of_experts.py"
ON_CPU = ("--device", "cpu", "--tokens", "12")
ERROR = re.compile(r"^(relative error against FP32|of the gradient by \w+): (\d\.\d+)$", re.M)


def errors(output):
    return {name: float(error) for name, error in ERROR.findall(output)}


@pytest.mark.parametrize(
    ("model", "experts", "chosen"),
    [("qwen3-30b-a3b", "10", "8 of 10"), ("deepseek-v3", "2", "2 of 2")],
)
def test_errors_are_those_of_fp8(model, experts, chosen):
    output = run(sys.executable, SCRIPT, "--model", model, "--experts", experts, *ON_CPU)
    assert f"12 tokens to {chosen} experts" in output
    found = errors(output)
    assert len(found) == 5, output
    assert all(0.02 < error < 0.12 for error in found.values()), output


def test_a_recipe_that_is_none_is_refused():
    command = (sys.executable, SCRIPT, "--recipe", "none", *ON_CPU)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "recipe" in result.stderr
