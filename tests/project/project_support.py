"""What the tests of this folder share."""

import os
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*command, cwd=None, **environment):
    """Runs a command that has to succeed and returns what it printed."""
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | environment
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def assert_example_output(output):
    """FP8 with block scales is off by about 4 % on normally distributed values."""
    match = re.fullmatch(r"relative error against FP32: (0\.\d+)\n", output)
    assert match, output
    assert 0.02 < float(match[1]) < 0.06
