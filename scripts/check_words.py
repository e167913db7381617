#!/usr/bin/env python3
"""Names comments and docstrings that begin without a subject, such as "Of both" or "What it takes".

scripts/check_words.py [FOLDER...]
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = r"(?:Of|What|Whether|Where|Which|Whose|That|Those|As|Such|Likewise)\b.*"
# The first of the comments that follow each other on their own lines; one behind code; a docstring.
ABOVE = r"(?:\A|^(?![ \t]*{mark}[ \t]*\S).*\n)"
COMMENT = ABOVE + r"[ \t]*{mark} " + FIRST + r"|\S.*[^:\"\n]{mark} " + FIRST
DOCSTRING = r'^[ \t]*"""' + FIRST
PATTERNS = {
    suffix: re.compile(pattern, re.MULTILINE)
    for suffixes, pattern in (
        ((".h", ".cpp", ".cu", ".cuh"), COMMENT.replace("{mark}", "///?<?")),
        ((".py",), COMMENT.replace("{mark}", "#") + "|" + DOCSTRING),
    )
    for suffix in suffixes
}


def main() -> int:
    git = ["git", "ls-files", *sys.argv[1:]]
    names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{name}:{text.count(chr(10), 0, match.end()) + 1}: {match[0].splitlines()[-1].strip()}"
        for name in names.splitlines()
        if (pattern := PATTERNS.get(Path(name).suffix))
        for text in [(ROOT / name).read_text("utf-8")]
        for match in pattern.finditer(text)
    ]
    print(*found, sep="\n")
    return f"{len(found)} comments begin without a subject" if found else 0


if __name__ == "__main__":
    sys.exit(main())
