"""Fixtures that tests of the command line share."""

import pytest
from octofold_tool.__main__ import main


@pytest.fixture
def run(capsys):
    """Calls `octofold ARGUMENTS` and returns exit code, standard output and standard error."""

    def call(*arguments):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse's --help and errors
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
