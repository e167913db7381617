"""The version, and what the changelog says of it."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CHANGELOG = REPOSITORY / "CHANGELOG.md"


def version() -> str:
    """Said once, in CMakeLists.txt."""
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    return re.findall(r"project\(octofold VERSION ([\d.]+)", text)[0]


def first_section(changelog: str, of: str) -> tuple[str, str]:
    """The state of the first section, "unreleased" or a date, and its text."""
    head, _, rest = changelog.partition("\n## ")[2].partition("\n")
    match = re.fullmatch(r"([\d.]+) \(([\w-]+)\)", head)
    if match is None or match[1] != of:
        raise SystemExit(
            f"CHANGELOG.md: expected the first section to be '## {of} (unreleased)', as "
            f"CMakeLists.txt has that version, got '## {head}'"
        )
    return match[2], rest.partition("\n## ")[0].strip() + "\n"
