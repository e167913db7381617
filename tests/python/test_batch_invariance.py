"""The switch for all calls. What it does to the results of operations is tested with them."""

import os
import subprocess
import sys

import pytest

import octofold


def test_is_off_at_first_and_can_be_switched():
    assert octofold.is_batch_invariant() is False
    octofold.set_batch_invariant(True)
    try:
        assert octofold.is_batch_invariant() is True
    finally:
        octofold.set_batch_invariant(False)
    assert octofold.is_batch_invariant() is False


def test_wants_a_bool():
    with pytest.raises(octofold.InvalidArgumentError, match="'enabled': expected True or False"):
        octofold.set_batch_invariant(1)


def test_the_environment_switches_it_on():
    script = "import octofold; print(octofold.is_batch_invariant())"
    environment = {**os.environ, "OCTOFOLD_BATCH_INVARIANT": "1"}
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, env=environment, text=True) == "True\n"
