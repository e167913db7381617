"""The dense block-scaled kernel reads in the files that docs/kernels.md names, and in no others."""

import re
from pathlib import Path

from tests.project.project_support import REPOSITORY

MOST_FILES, MOST_LINES, MOST_BRANCHES = 14, 1500, 30
POLICIES = "kernels/sm90/policies.h"


def section():
    page = (REPOSITORY / "docs" / "kernels.md").read_text()
    found = re.search(r"^## Reading order\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def files_in_order():
    rows = re.findall(r"^(\d+)\. `(kernels/[\w/]+\.h)`: ", section(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return [path for _, path in rows]


def looked_up():
    """Names of the files of which the page says that they are looked up."""
    paragraph = next(line for line in section().splitlines() if line.startswith("Some files"))
    return {Path(path).name for path in re.findall(r"`([\w/]+\.h)`", paragraph)}


def lines(path):
    return (REPOSITORY / path).read_text().splitlines()


def test_the_path_is_short():
    files = files_in_order()
    assert files[0] == "kernels/sm90/kernel.h"
    assert len(files) <= MOST_FILES
    count = sum(len(lines(path)) for path in files)
    assert count <= MOST_LINES, count


def test_nothing_else_has_to_be_read():
    """Files of the path include each other, instructions, and what is looked up; the one that
    chooses policies includes all of them."""
    files = files_in_order()
    assert POLICIES in files
    for path in files:
        if path == POLICIES:
            continue
        for included in re.findall(r'^#include "(.*)"$', "\n".join(lines(path)), re.MULTILINE):
            is_known = included in files or included.startswith("kernels/ptx/")
            assert is_known or Path(included).name in looked_up(), (path, included)


def test_features_are_policies_not_branches():
    headers = [
        path
        for room in ("sm90", "epilogue")
        for path in (REPOSITORY / "kernels" / room).rglob("*.h")
    ]
    count = sum(path.read_text().count("if constexpr") for path in headers)
    assert count <= MOST_BRANCHES, count
    kernel = "\n".join(lines("kernels/sm90/kernel.h"))
    assert "if constexpr" not in kernel
