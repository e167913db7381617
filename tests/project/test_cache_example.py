"""examples/python/generate_with_fp8_cache.py on the CPU."""

import re
import subprocess
import sys

import pytest
from project_support import REPOSITORY, run

pytest.importorskip("torch")

SCRIPT = REPOSITORY / "examples" / "python" / "generate_with_fp8_cache.py"


def test_tokens_are_those_of_plain_attention():
    output = run(sys.executable, SCRIPT, "--device", "cpu", "--tokens", "4")
    assert "same tokens as plain attention over the same codes: 12 of 12" in output
    bytes_ = re.search(r"cache: (\d+) bytes in FP8, (\d+) in FP16", output)
    assert bytes_
    assert 2 * int(bytes_[1]) == int(bytes_[2])


def test_more_tokens_than_the_context_are_refused():
    command = (sys.executable, SCRIPT, "--device", "cpu", "--tokens", "2000")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "--tokens: expected 1 to" in result.stderr
