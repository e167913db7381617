"""Links of the Markdown pages lead to files and headings that are there, on GitHub too. (The site's
build checks those of docs once more; README.md is no page of it.)"""

import re

import pytest

from tests.project.code_blocks import pages
from tests.project.project_support import REPOSITORY

LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)?(?:#([^)\s]+))?\)|\]\(#([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """The anchors that GitHub gives to headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = re.compile(rf"{re.escape(anchor)}(-\d+)?")
        number = sum(again.fullmatch(other) is not None for other in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def problems(page):
    for found in LINK.finditer(FENCE.sub("", page.read_text())):
        path, anchor = found[1], found[2] or found[3]
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{found[0]}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{found[0]}: no such heading"


@pytest.mark.parametrize(
    "page",
    [*pages(), REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_links(page):
    assert not list(problems(page))


def test_what_is_not_there_is_found(tmp_path):
    (tmp_path / "b.md").write_text("# One `thing`, two\n## Again\n## Again\n")
    page = tmp_path / "a.md"
    page.write_text("[](b.md#one-thing-two) [](b.md#again-1) [](c.md) [](b.md#none) [](#here)\n")
    assert [problem.partition(":")[0] for problem in problems(page)] == [
        "](c.md)",
        "](b.md#none)",
        "](#here)",
    ]


def test_the_environment_is_what_the_library_reads():
    options = (REPOSITORY / "src" / "core" / "options.cpp").read_text()
    read = set(re.findall(r'(?:value|is_on)\("([A-Z_]+)"', options))
    documented = set(
        re.findall(r"OCTOFOLD_[A-Z_]+", (REPOSITORY / "src" / "core" / "options.h").read_text())
    )
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
