"""The runs of docs/gallery.md, which the site's build and the tests share (example_runs.py)."""

import example_runs

from tests.project.code_blocks import GALLERY, blocks

COMMANDS = [
    example_runs.command_of(block.code) for block in blocks(GALLERY) if block.language == "console"
]


def of_the_gallery(program):
    """The output of the gallery's run of a program."""
    command = next(command for command in COMMANDS if program in command)
    return example_runs.run(command).output
