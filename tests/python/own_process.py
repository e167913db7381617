"""Code in a process of its own: a library is imported once in one, and reads its environment
once."""

import os
import subprocess
import sys


def python(code, *arguments, **environment):
    """Runs code, which has to end well, and returns what it prints."""
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    result = subprocess.run(command, env=os.environ | environment, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout
