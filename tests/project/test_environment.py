"""docs/environment.md lists what the code reads."""

import re

from tests.project.project_support import REPOSITORY

VARIABLE = re.compile(r"OCTOFOLD_[A-Z_]+")


def test_the_table_is_that_of_the_library():
    options = (REPOSITORY / "src" / "core" / "options.cpp").read_text()
    read = set(re.findall(r'(?:value|is_on)\("([A-Z_]+)"', options))
    documented = set(VARIABLE.findall((REPOSITORY / "src" / "core" / "options.h").read_text()))
    page = (REPOSITORY / "docs" / "environment.md").read_text()
    rows = set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE))
    of_python = {
        name
        for path in (REPOSITORY / "python").rglob("*.py")
        for name in re.findall(r'"(OCTOFOLD_[A-Z_]+)"', path.read_text())
    }
    assert read | of_python == rows | {"XDG_CACHE_HOME", "HOME"}
    assert documented == rows - (of_python - read)


def test_nothing_else_reads_the_environment():
    readers = {
        path.relative_to(REPOSITORY).as_posix()
        for folder in ("src", "bindings", "include")
        for path in (REPOSITORY / folder).rglob("*.[ch]*")
        if re.search(r"\bgetenv\(", path.read_text())
    }
    assert readers == {"src/core/options.cpp"}
