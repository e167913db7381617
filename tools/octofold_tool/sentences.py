"""The text that models are tried on."""

import argparse
from importlib import resources
from pathlib import Path

from .report import ToolError, read_text


def add_text(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help=f"{what}, a sentence per line, UTF-8 (default: forty sentences of the tool's)",
    )


def read_sentences(path: Path | None) -> list[str]:
    """The sentences of a text file, or of the page that comes with the tool."""
    try:
        text = (
            resources.files(__package__).joinpath("page.txt").read_text(encoding="utf-8")
            if path is None
            else read_text(path)
        )
    except UnicodeDecodeError:
        raise ToolError(f"{path}: expected UTF-8 text") from None
    sentences = [line.strip() for line in text.splitlines() if line.strip()]
    if len(sentences) < 2:
        raise ToolError(f"{path}: expected at least two sentences, a line each, to compare")
    return sentences
