"""Helpers that the tests of this folder share."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "python"


def outcome(*command, cwd=None, **environment):
    """The result of a command that may fail: its exit status and what it printed."""
    options = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, **options)


def run(*command, cwd=None, **environment):
    """Runs a command that has to succeed and returns what it printed."""
    result = outcome(*command, cwd=cwd, **environment)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def refused(script, *arguments):
    """The message of a script that has to end with an error, and without a trace. It runs in this
    process, which has imported what it imports."""
    errors = io.StringIO()
    before = sys.argv, sys.path
    sys.argv = [str(script), *map(str, arguments)]
    sys.path = [str(Path(script).parent), *sys.path]
    try:
        with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path = before
    assert end.value.code not in (None, 0)
    return errors.getvalue() + str(end.value)


def assert_example_output(output):
    """FP8 with block scales is off by about 4 % on normally distributed values."""
    match = re.fullmatch(r"relative error against FP32: (0\.\d+)\n", output)
    assert match, output
    assert 0.02 < float(match[1]) < 0.06
