"""The code blocks of README.md and of docs, and what makes them run.

Blocks of a page run in order in one namespace. HTML comments right before a block, which no reader
sees, say what it takes for granted:

    <!-- given
    x = torch.randn(64, 512)
    -->           Python that runs before it: what a reader would have at this place
    <!-- gpu -->  the block runs where there is a GPU, else it is compiled only
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.project.project_support import REPOSITORY

GALLERY = REPOSITORY / "docs" / "gallery.md"  # which the site's build runs (test_examples.py)
BLOCK = re.compile(
    r"(?P<comments>(?:^<!--(?:(?!-->).)*-->\n+)*)^```(?P<language>\S*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
GIVEN = re.compile(r"<!-- given\n(.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    given: str
    needs_gpu: bool
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"

    def compiled(self) -> object:
        """The code, whose errors name lines of the page."""
        return compile("\n" * self.line + self.code, str(self.page), "exec")


def pages() -> list[Path]:
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        comments = found["comments"]
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("code")),
            language=found["language"],
            given="".join(GIVEN.findall(comments)),
            needs_gpu="<!-- gpu -->" in comments,
            code=found["code"],
        )


def pages_with(*languages: str) -> list[Path]:
    """But for the gallery."""
    return [
        page
        for page in pages()
        if page != GALLERY and any(block.language in languages for block in blocks(page))
    ]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, as words. In a console they follow a dollar sign."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]
